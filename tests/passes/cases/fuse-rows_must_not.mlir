// RUN: fuse-rows
// MATCHES: 0
// A row program makes the operand, or the caller does, or the format is another: the quantization stays where it is.

func.func @f(%o: !dsv41.tensor<[T, 64], bf16>, %g: !dsv41.tensor<[64, 32], f8E4M3FN>, %t: !dsv41.tensor<[2, 1], ui8>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %a = dsv41.linears %o, %g, %t {groups = 2, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %n = torch.aten.add.Tensor %a, %o, %int1 : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %q = dsv41.fake_quantize %n {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %y = dsv41.linears %q, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %p = dsv41.fake_quantize %o {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %z = dsv41.linears %p, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %r = dsv41.fake_quantize %z {row_format = "fp4_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %v = dsv41.linears %r, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  func.return %y, %v : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %q = dsv41.fake_quantize %n
// CHECK-NEXT: %y = dsv41.linears %q, %w, %s {groups = 1, quantize = 0
// CHECK-NEXT: %p = dsv41.fake_quantize %o
// CHECK-NEXT: %z = dsv41.linears %p, %w, %s {groups = 1, quantize = 0
// CHECK-NEXT: %r = dsv41.fake_quantize %z
// CHECK-NEXT: %v = dsv41.linears %r, %w, %s {groups = 1, quantize = 0
