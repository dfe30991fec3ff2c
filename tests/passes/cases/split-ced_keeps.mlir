// RUN: split-ced
// MATCHES: 3
// One value crosses, the narrowest: the tail makes its fp32 copy again, and what follows from its inputs (%moved) too.
// Both parts read the sink.

func.func @step(%tokens: !dsv41.tensor<[T], si64>, %slots: !dsv41.tensor<[T], si64>, %index: !dsv41.tensor<[T, 8], si32>, %chosen: !dsv41.tensor<[T, 4], si32>, %entries: !dsv41.tensor<[T], si64>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.1: !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.1: !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) -> (!dsv41.tensor<[T, 1, 64], bf16>, !dsv41.tensor<[T, 64], f32>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 9], S = [1, 4]}, dsv41.outputs = ["out", "sum", "window.0", "window.1", "main.1"]} {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %embed.weight = dsv41.weight {name = "embed.weight", source = "checkpoint"} : !dsv41.tensor<[9, 64], bf16>
  %sink = dsv41.weight {name = "sink", source = "checkpoint"} : !dsv41.tensor<[1], f32>
  %h.0 = torch.aten.embedding %embed.weight, %tokens, %int1, %false, %false : !dsv41.tensor<[9, 64], bf16>, !dsv41.tensor<[T], si64>, !torch.int, !torch.bool, !torch.bool -> !dsv41.tensor<[T, 64], bf16>
  %f32 = torch.constant.int 6
  %none = torch.constant.none
  %moved = torch.aten.add.Scalar %index, %int1, %int1 : !dsv41.tensor<[T, 8], si32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], si32>
  %rows.0 = dsv41.quantize %h.0 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %query.0 = torch.aten.unsqueeze %h.0, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 1, 64], bf16>
  %attended.0 = dsv41.sparse_attention %query.0, %window.0, %rows.0, %moved, none, none, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.0.new = dsv41.store %window.0, %rows.0, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %h.1 = torch.aten.squeeze.dim %attended.0, %int1 : !dsv41.tensor<[T, 1, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %wide = torch.aten.to.dtype %h.1, %f32, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %bf16 = torch.constant.int 15
  %root = torch.aten.square %wide : !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  %h.2 = torch.aten.to.dtype %root, %bf16, %false, %false, %none : !dsv41.tensor<[T, 64], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  %latent = dsv41.quantize %h.2 {row_format = "fp4_e4m3"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 36], ui8>
  %main.1.new = dsv41.store %main.1, %latent, %entries {row_format = "fp4_e4m3", page = 8} : !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
  %rows.1 = dsv41.quantize %h.1 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %query.1 = torch.aten.unsqueeze %h.1, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 1, 64], bf16>
  %attended.1 = dsv41.sparse_attention %query.1, %window.1, %rows.1, %moved, %main.1.new, %chosen, %sink {scale = 0.125, window_page = 8, main_page = 8} : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 1, 64], bf16>
  %window.1.new = dsv41.store %window.1, %rows.1, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %sum = torch.aten.mul.Tensor %wide, %wide : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  func.return %attended.1, %sum, %window.0.new, %window.1.new, %main.1.new : !dsv41.tensor<[T, 1, 64], bf16>, !dsv41.tensor<[T, 64], f32>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.cache<"main", owner 1, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 16>>
}

// CHECK:      func.func @encode(
// CHECK:      dsv41.weight {name = "sink"
// CHECK:      %moved = torch.aten.add.Scalar %index
// CHECK:      %wide = torch.aten.to.dtype %h.1
// CHECK:      func.return %attended.0, %window.0.new, %main.1.new
// CHECK:      func.func @tail({{.*}}%carry.0: !dsv41.tensor<[T, 1, 64], bf16>, %window.1
// CHECK:      dsv41.weight {name = "sink"
// CHECK:      %moved = torch.aten.add.Scalar %index
// CHECK:      %h.1 = torch.aten.squeeze.dim %carry.0
// CHECK:      %wide = torch.aten.to.dtype %h.1
// CHECK-NOT:  %root
// CHECK:      func.return %attended.1, %sum, %window.1.new
