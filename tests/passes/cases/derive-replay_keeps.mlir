// RUN: derive-replay
// MATCHES: 4
// The windows themselves are what a replay is for: their rows go where the program puts them, and so does what it gives.

func.func @encode(%slots: !dsv41.tensor<[T], si64>, %pairs: !dsv41.tensor<[T], si64>, %entries: !dsv41.tensor<[T], si64>, %index: !dsv41.tensor<[T, 8], si32>, %query: !dsv41.tensor<[T, 1, 64], bf16>, %rows: !dsv41.tensor<[T, 66], ui8>, %latent: !dsv41.tensor<[T, 36], ui8>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.0: !dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, %main.1: !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) -> (!dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 9], S = [1, 4]}, dsv41.outputs = ["carry.0", "window.0", "main.0", "main.1"]} {
  %sink = dsv41.weight {name = "sink", source = "checkpoint"} : !dsv41.tensor<[1], f32>
  %int1 = torch.constant.int 1
  %moved = torch.aten.add.Scalar %index, %int1, %int1 : !dsv41.tensor<[T, 8], si32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], si32>
  %attended = dsv41.sparse_attention %query, %window.0, %rows, %moved, none, none, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.0.new = dsv41.store %window.0, %rows, %slots {row_format = "fp8_e8m0", page = 8, in_place} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %main.0.new = dsv41.store %main.0, %latent, %pairs {row_format = "fp4_e4m3", page = 4, in_place} : !dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  %main.1.new = dsv41.store %main.1, %latent, %entries {row_format = "fp4_e4m3", page = 8, in_place} : !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
  func.return %attended, %window.0.new, %main.0.new, %main.1.new : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
}

// CHECK:      func.func @encode_replay(
// CHECK:      dsv41.store %window.0, %rows, %slots
// CHECK:      func.return %attended, %window.0.new, %main.0.new, %main.1.new
