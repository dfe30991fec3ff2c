// RUN: specialize-rows
// MATCHES: 0
// There is one row anyway.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 1]}} {
  %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK:     func.func @f(
// CHECK-NOT: func.func @f_one_row
