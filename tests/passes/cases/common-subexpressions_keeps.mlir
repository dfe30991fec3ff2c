// RUN: common-subexpressions
// MATCHES: 0
// Ops with an effect on state are never merged, and random ones neither.

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %a = dsv41.load %window, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %b = dsv41.load %window, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %none = torch.constant.none
  %r = torch.aten.rand_like %a, %none, %none, %none, %none, %none : !dsv41.tensor<[T, 66], ui8>, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !dsv41.tensor<[T, 66], ui8>
  %s = torch.aten.rand_like %a, %none, %none, %none, %none, %none : !dsv41.tensor<[T, 66], ui8>, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !dsv41.tensor<[T, 66], ui8>
  %stored = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %stored, %a, %b, %r, %s : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 66], ui8>
}

// CHECK: %a = dsv41.load %window
// CHECK-NEXT: %b = dsv41.load %window
// CHECK: %r = torch.aten.rand_like
// CHECK-NEXT: %s = torch.aten.rand_like
// CHECK: func.return %stored, %a, %b, %r, %s
