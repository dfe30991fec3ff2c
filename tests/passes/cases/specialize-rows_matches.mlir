// RUN: specialize-rows
// MATCHES: 1
// A second form for one row of one sequence; other ranges stay.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 9]}} {
  %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK:      func.func @f(%x: {{.*}}T = [1, 512], B = [1, 64], P = [1, 9]
// CHECK:      func.func @f_one_row(%x: {{.*}}T = [1, 1], B = [1, 1], P = [1, 9]
// CHECK-NEXT: %y = torch.aten.mul.Tensor %x, %x
