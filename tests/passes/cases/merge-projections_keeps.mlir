// RUN: merge-projections
// MATCHES: 1
// A weight that is computed behind the first product cannot move there; its product stays where it is.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>, %v: !dsv41.tensor<[32, 64], f8E4M3FN>, %r: !dsv41.tensor<[1, 2], ui8>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 32], bf16>) attributes {dsv41.symbols = {T = [2, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %a = dsv41.linears %x, %w, %s {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %next = torch.aten.add.Scalar %r, %int1, %int1 : !dsv41.tensor<[1, 2], ui8>, !torch.int, !torch.int -> !dsv41.tensor<[1, 2], ui8>
  %b = dsv41.linears %x, %v, %next {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8> -> !dsv41.tensor<[T, 32], bf16>
  %c = dsv41.linears %x, %v, %r {groups = 1, quantize = 0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8> -> !dsv41.tensor<[T, 32], bf16>
  func.return %a, %b, %c : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 32], bf16>
}

// CHECK: %a, %c = dsv41.linears %x, %w, %s, %v, %r
// CHECK-NEXT: %next = torch.aten.add.Scalar
// CHECK-NEXT: %b = dsv41.linears %x, %v, %next
