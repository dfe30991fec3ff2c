// RUN: state-in-place,state-in-place
// MATCHES: 0
// Marked stores stay marked; readers and the order of ops stay as they are.

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %old = dsv41.load %window, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %first, %old : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>
}

// CHECK:      %old = dsv41.load %window
// CHECK-NEXT: %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8, in_place}
// CHECK-NEXT: func.return %first, %old
