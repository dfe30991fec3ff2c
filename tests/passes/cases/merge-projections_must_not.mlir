// RUN: merge-projections
// MATCHES: 0
// Products in groups, of another input, or of an input that one of them quantizes, are other products.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %z: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>, %g: !dsv41.tensor<[64, 32], f8E4M3FN>, %t: !dsv41.tensor<[2, 1], ui8>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %a = dsv41.linears %x, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %b = dsv41.linears %z, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %c = dsv41.linears %x, %w, %s {groups = 1, quantize = 1} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %d = dsv41.linears %x, %g, %t {groups = 2, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %e = dsv41.linears %x, %g, %t {groups = 2, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[T, 64], bf16>
  func.return %a, %b, %c, %d, %e : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %a = dsv41.linears %x, %w, %s {groups = 1, quantize = 0
// CHECK-NEXT: %b = dsv41.linears %z, %w, %s
// CHECK-NEXT: %c = dsv41.linears %x, %w, %s {groups = 1, quantize = 1
// CHECK-NEXT: %d = dsv41.linears %x, %g, %t {groups = 2
// CHECK-NEXT: %e = dsv41.linears %x, %g, %t {groups = 2
