// RUN: state-in-place
// ERROR: reader: func.return %first, %window

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %first, %window : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
}
