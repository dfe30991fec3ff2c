// RUN: derive-replay
// ERROR: 'encode_replay' cannot bound what this op reads of a window, only an attention

func.func @encode(%slots: !dsv41.tensor<[T], si64>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 66], ui8>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 9], S = [1, 4]}} {
  %rows = dsv41.load %window.0, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  func.return %rows : !dsv41.tensor<[T, 66], ui8>
}
