// RUN: expand-definitions
// MATCHES: 1
// An op with a definition becomes its aten ops; the last of them takes its name.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 66], ui8>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %rows = dsv41.quantize %x {row_format = "fp8_e8m0", origin = "a.py:1"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  func.return %rows : !dsv41.tensor<[T, 66], ui8>
}

// CHECK-NOT:  dsv41.quantize
// CHECK:      torch.aten.amax
// CHECK:      torch.aten.view.dtype
// CHECK:      %rows = torch.aten.cat %{{.*}} {origin = "a.py:1, expand-definitions"}
// CHECK-NEXT: func.return %rows
