// RUN: split-ced{states=main.2}
// ERROR: 'main.2' of states is no state of 'step'; it has the caches window.0, window.1, main.1

func.func @step(%tokens: !dsv41.tensor<[T], si64>, %slots: !dsv41.tensor<[T], si64>, %index: !dsv41.tensor<[T, 8], si32>, %chosen: !dsv41.tensor<[T, 4], si32>, %entries: !dsv41.tensor<[T], si64>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.1: !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.1: !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) -> (!dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 9], S = [1, 4]}, dsv41.outputs = ["out", "window.0", "window.1", "main.1"]} {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %embed.weight = dsv41.weight {name = "embed.weight", source = "checkpoint"} : !dsv41.tensor<[9, 64], bf16>
  %sink = dsv41.weight {name = "sink", source = "checkpoint"} : !dsv41.tensor<[1], f32>
  %h.0 = torch.aten.embedding %embed.weight, %tokens, %int1, %false, %false : !dsv41.tensor<[9, 64], bf16>, !dsv41.tensor<[T], si64>, !torch.int, !torch.bool, !torch.bool -> !dsv41.tensor<[T, 64], bf16>
  %rows.0 = dsv41.quantize %h.0 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %query.0 = torch.aten.unsqueeze %h.0, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 1, 64], bf16>
  %attended.0 = dsv41.sparse_attention %query.0, %window.0, %rows.0, %index, none, none, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.0.new = dsv41.store %window.0, %rows.0, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %h.1 = torch.aten.squeeze.dim %attended.0, %int1 : !dsv41.tensor<[T, 1, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %latent = dsv41.quantize %h.1 {row_format = "fp4_e4m3"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 36], ui8>
  %main.1.new = dsv41.store %main.1, %latent, %entries {row_format = "fp4_e4m3", page = 8} : !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
  %rows.1 = dsv41.quantize %h.1 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %query.1 = torch.aten.unsqueeze %h.1, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 1, 64], bf16>
  %attended.1 = dsv41.sparse_attention %query.1, %window.1, %rows.1, %index, %main.1.new, %chosen, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.1.new = dsv41.store %window.1, %rows.1, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %attended.1, %window.0.new, %window.1.new, %main.1.new : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
}
