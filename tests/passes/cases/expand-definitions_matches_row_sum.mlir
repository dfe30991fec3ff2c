// RUN: expand-definitions
// MATCHES: 1
// A mean over the last dimension is spelled in torch's order of additions: steps, then four chains, then eight lanes.

func.func @f(%x: !dsv41.tensor<[T, 128], f32>) -> (!dsv41.tensor<[T, 1], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int-1 = torch.constant.int -1
  %dims = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %none = torch.constant.none
  %mean = torch.aten.mean.dim %x, %dims, %true, %none : !dsv41.tensor<[T, 128], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  func.return %mean : !dsv41.tensor<[T, 1], f32>
}

// CHECK-NOT:  torch.aten.mean.dim
// CHECK:      -> !dsv41.tensor<[T, 4, 4, 8], f32>
// CHECK:      torch.aten.sum.dim_IntList {{.*}} -> !dsv41.tensor<[T, 4, 8], f32>
// CHECK:      %mean = torch.aten.div
// CHECK-NEXT: func.return %mean
