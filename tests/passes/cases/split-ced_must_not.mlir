// RUN: split-ced
// MATCHES: 0
// Windows alone are no state that outlives a prompt's rows: there is no encoder.

func.func @step(%tokens: !dsv41.tensor<[T], si64>, %slots: !dsv41.tensor<[T], si64>, %index: !dsv41.tensor<[T, 8], si32>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 9], S = [1, 4]}, dsv41.outputs = ["out", "window.0"]} {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %embed.weight = dsv41.weight {name = "embed.weight", source = "checkpoint"} : !dsv41.tensor<[9, 64], bf16>
  %sink = dsv41.weight {name = "sink", source = "checkpoint"} : !dsv41.tensor<[1], f32>
  %h.0 = torch.aten.embedding %embed.weight, %tokens, %int1, %false, %false : !dsv41.tensor<[9, 64], bf16>, !dsv41.tensor<[T], si64>, !torch.int, !torch.bool, !torch.bool -> !dsv41.tensor<[T, 64], bf16>
  %rows.0 = dsv41.quantize %h.0 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %query.0 = torch.aten.unsqueeze %h.0, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 1, 64], bf16>
  %attended.0 = dsv41.sparse_attention %query.0, %window.0, %rows.0, %index, none, none, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.0.new = dsv41.store %window.0, %rows.0, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %attended.0, %window.0.new : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
}

// CHECK:     func.func @step(
// CHECK-NOT: func.func
