// RUN: hoist-engram
// MATCHES: 1
// The rows and what they are computed from come first; the layer before Engram follows.

func.func @f(%tokens: !dsv41.tensor<[T], si64>, %ids: !dsv41.tensor<[T, 3], si64>, %x: !dsv41.tensor<[T, 64], bf16>, %multipliers: !dsv41.tensor<[3], si64>, %primes: !dsv41.tensor<[2], si64>, %offsets: !dsv41.tensor<[2], si64>, %table: !dsv41.tensor<[40, 32], f8E4M3FN>, %scale: !dsv41.tensor<[40, 1], ui8>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %int0 = torch.constant.int 0
  %none = torch.constant.none
  %clamped = torch.aten.clamp %ids, %int0, %none : !dsv41.tensor<[T, 3], si64>, !torch.int, !torch.none -> !dsv41.tensor<[T, 3], si64>
  %rows = dsv41.ngram_hash %clamped, %multipliers, %primes, %offsets : !dsv41.tensor<[T, 3], si64>, !dsv41.tensor<[3], si64>, !dsv41.tensor<[2], si64>, !dsv41.tensor<[2], si64> -> !dsv41.tensor<[T, 2], si64>
  %e = dsv41.lookup %table, %scale, %rows : !dsv41.tensor<[40, 32], f8E4M3FN>, !dsv41.tensor<[40, 1], ui8>, !dsv41.tensor<[T, 2], si64> -> !dsv41.tensor<[T, 64], bf16>
  %y = torch.aten.add.Tensor %a, %e, %int1 : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %int0 = torch.constant.int 0
// CHECK-NEXT: %none = torch.constant.none
// CHECK-NEXT: %clamped = torch.aten.clamp %ids
// CHECK-NEXT: %rows = dsv41.ngram_hash %clamped
// CHECK-NEXT: %e = dsv41.lookup %table, %scale, %rows
// CHECK-NEXT: %int1 = torch.constant.int 1
// CHECK-NEXT: %a = torch.aten.mul.Tensor %x, %x
// CHECK-NEXT: %y = torch.aten.add.Tensor %a, %e
