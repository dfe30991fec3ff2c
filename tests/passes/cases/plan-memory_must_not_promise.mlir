// RUN: plan-memory{budget=20000}
// ERROR: 'f' holds 24,576 bytes at T = 512 and may hold 20,000; tiles of 16 rows or more do not bring it there
// Input and output alone are more than the budget.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %y = dsv41.launch "double"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @double(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.add.Tensor %x, %x, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}
