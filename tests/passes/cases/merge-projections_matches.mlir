// RUN: merge-projections
// MATCHES: 1
// Query and key projections of one input; the second weight is read after the first product.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %wq = dsv41.weight {name = "wq_a.weight", source = "checkpoint"} : !dsv41.tensor<[64, 64], f8E4M3FN>
  %sq = dsv41.weight {name = "wq_a.scale", source = "checkpoint"} : !dsv41.tensor<[2, 2], ui8>
  %q = dsv41.linears %x, %wq, %sq {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %wk = dsv41.weight {name = "wkv.weight", source = "checkpoint"} : !dsv41.tensor<[32, 64], f8E4M3FN>
  %sk = dsv41.weight {name = "wkv.scale", source = "checkpoint"} : !dsv41.tensor<[1, 2], ui8>
  %k = dsv41.linears %x, %wk, %sk {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8> -> !dsv41.tensor<[T, 32], bf16>
  func.return %q, %k : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>
}

// CHECK: %wk = dsv41.weight
// CHECK-NEXT: %sk = dsv41.weight
// CHECK-NEXT: %q, %k = dsv41.linears %x, %wq, %sq, %wk, %sk {groups = 1, quantize = 0
// CHECK-NOT: dsv41.linears
