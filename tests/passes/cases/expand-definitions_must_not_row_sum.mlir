// RUN: expand-definitions
// MATCHES: 0
// A sum over another dimension, or over few columns, has one order anyway.

func.func @f(%x: !dsv41.tensor<[T, 4, 128], f32>, %y: !dsv41.tensor<[T, 2], f32>) -> (!dsv41.tensor<[T, 128], f32>, !dsv41.tensor<[T], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %dims = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %false = torch.constant.bool false
  %none = torch.constant.none
  %mean = torch.aten.mean.dim %x, %dims, %false, %none : !dsv41.tensor<[T, 4, 128], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 128], f32>
  %sum = torch.aten.sum.dim_IntList %y, %dims, %false, %none : !dsv41.tensor<[T, 2], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T], f32>
  func.return %mean, %sum : !dsv41.tensor<[T, 128], f32>, !dsv41.tensor<[T], f32>
}

// CHECK: %mean = torch.aten.mean.dim %x
// CHECK: %sum = torch.aten.sum.dim_IntList %y
