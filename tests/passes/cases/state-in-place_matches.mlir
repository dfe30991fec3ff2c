// RUN: state-in-place
// MATCHES: 2
// A chain of stores; readers of each value stand before the store that replaces it.

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %old = dsv41.load %window, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %new = dsv41.load %first, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %second = dsv41.store %first, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %last = dsv41.load %second, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  func.return %second, %last : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>
}

// CHECK: %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8, in_place}
// CHECK: %second = dsv41.store %first, %rows, %slots {row_format = "fp8_e8m0", page = 8, in_place}
