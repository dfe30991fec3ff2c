// RUN: plan-memory{rows=16}
// MATCHES: 0
// A sum over rows needs all of them.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %y = dsv41.launch "center"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @center(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %true = torch.constant.bool true
  %none = torch.constant.none
  %list = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %m = torch.aten.mean.dim %x, %list, %true, %none : !dsv41.tensor<[T, 6], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[1, 6], f32>
  %y = torch.aten.sub.Tensor %x, %m, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[1, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK: %y = dsv41.launch "center"(%x)
