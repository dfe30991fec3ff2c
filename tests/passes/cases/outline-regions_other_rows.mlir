// RUN: outline-regions
// MATCHES: 4
// What takes rows of other tokens from %p stands in a region of its own; rows of an input may be anyone's anyway.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %table: !dsv41.tensor<[T, 6], f32>, %at: !dsv41.tensor<[T], si64>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %list = torch.prim.ListConstruct %at : (!dsv41.tensor<[T], si64>) -> !torch.list<vtensor>
  %t = torch.aten.index.Tensor_hacked_twin %table, %list : !dsv41.tensor<[T, 6], f32>, !torch.list<vtensor> -> !dsv41.tensor<[T, 6], f32>
  %p = torch.aten.mul.Tensor %x, %t : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %list_1 = torch.prim.ListConstruct %at : (!dsv41.tensor<[T], si64>) -> !torch.list<vtensor>
  %o = torch.aten.index.Tensor_hacked_twin %p, %list_1 : !dsv41.tensor<[T, 6], f32>, !torch.list<vtensor> -> !dsv41.tensor<[T, 6], f32>
  %y = torch.aten.mul.Tensor %o, %p : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %p = dsv41.call @region_0(%table, %at, %x)
// CHECK-NEXT: %y = dsv41.call @region_1(%p, %at)
// CHECK-NEXT: func.return %y
