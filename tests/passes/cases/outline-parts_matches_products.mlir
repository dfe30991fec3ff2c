// RUN: outline-parts
// MATCHES: 4
// Products: one function for each shape of weight, one for the quantization of the input.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>, %v: !dsv41.tensor<[32, 64], f8E4M3FN>, %r: !dsv41.tensor<[1, 2], ui8>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %a, %b, %c = dsv41.linears %x, %w, %s, %v, %r, %w, %s {groups = 1, quantize = 1} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8>, !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 64], bf16>
  func.return %a, %b, %c : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %a, %b, %c = dsv41.linears %x, %w, %s, %v, %r, %w, %s {groups = 1, quantize = 1, unpack_0 = "part_0", unpack_1 = "part_1", unpack_2 = "part_0", prologue = "part_2"
// CHECK: func.func @part_0(%arg0: !dsv41.tensor<[64, 64], f8E4M3FN>
// CHECK: func.func @part_1(%arg0: !dsv41.tensor<[32, 64], f8E4M3FN>
// CHECK: func.func @part_2(%arg0: !dsv41.tensor<[T, 64], bf16>
// CHECK-NOT: @part_3
