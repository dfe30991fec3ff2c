// RUN: specialize-rows
// MATCHES: 0
// A function without rows of a batch keeps its ranges.

func.func @f(%x: !dsv41.tensor<[M, 64], bf16>) -> (!dsv41.tensor<[M, 64], bf16>) attributes {dsv41.symbols = {M = [1, 512]}} {
  %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[M, 64], bf16>, !dsv41.tensor<[M, 64], bf16> -> !dsv41.tensor<[M, 64], bf16>
  func.return %y : !dsv41.tensor<[M, 64], bf16>
}

// CHECK:     func.func @f(%x: {{.*}}M = [1, 512]
// CHECK-NOT: func.func @f_one_row
