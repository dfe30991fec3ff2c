// RUN: fuse-rows
// MATCHES: 1
// Two output projections: the second one quantizes what the first one gives.

func.func @f(%o: !dsv41.tensor<[T, 64], bf16>, %g: !dsv41.tensor<[64, 32], f8E4M3FN>, %t: !dsv41.tensor<[2, 1], ui8>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %a = dsv41.linears %o, %g, %t {groups = 2, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %q = dsv41.fake_quantize %a {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %y = dsv41.linears %q, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %a = dsv41.linears %o, %g, %t {groups = 2, quantize = 0
// CHECK-NEXT: %y = dsv41.linears %a, %w, %s {groups = 1, quantize = 1
// CHECK-NOT: dsv41.fake_quantize
