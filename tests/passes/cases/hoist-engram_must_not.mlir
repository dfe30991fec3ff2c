// RUN: hoist-engram
// MATCHES: 0
// Rows that are not hashed may follow from anything; this lookup stays.

func.func @f(%tokens: !dsv41.tensor<[T], si64>, %ids: !dsv41.tensor<[T, 3], si64>, %x: !dsv41.tensor<[T, 64], bf16>, %multipliers: !dsv41.tensor<[3], si64>, %primes: !dsv41.tensor<[2], si64>, %offsets: !dsv41.tensor<[2], si64>, %table: !dsv41.tensor<[40, 32], f8E4M3FN>, %scale: !dsv41.tensor<[40, 1], ui8>, %rows: !dsv41.tensor<[T, 2], si64>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %e = dsv41.lookup %table, %scale, %rows : !dsv41.tensor<[40, 32], f8E4M3FN>, !dsv41.tensor<[40, 1], ui8>, !dsv41.tensor<[T, 2], si64> -> !dsv41.tensor<[T, 64], bf16>
  %y = torch.aten.add.Tensor %a, %e, %int1 : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %int1 = torch.constant.int 1
// CHECK-NEXT: %a = torch.aten.mul.Tensor %x, %x
// CHECK-NEXT: %e = dsv41.lookup %table, %scale, %rows
// CHECK-NEXT: %y = torch.aten.add.Tensor %a, %e
