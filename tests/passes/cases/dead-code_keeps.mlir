// RUN: dead-code
// MATCHES: 1
// A store and its result stay; a load that nobody uses goes.

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %unused = dsv41.load %first, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %second = dsv41.store %first, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %second : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
}

// CHECK:      %first = dsv41.store %window
// CHECK-NOT:  dsv41.load
// CHECK:      %second = dsv41.store %first
// CHECK-NEXT: func.return %second
