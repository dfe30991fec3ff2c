// RUN: lower-experts,outline-parts
// MATCHES: 6
// A MoE sublayer leaves five parts: what stands before and behind the products of both kinds of expert, and the sum.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %ids: !dsv41.tensor<[T, 2], si64>, %weights: !dsv41.tensor<[T, 2], f32>, %w1: !dsv41.tensor<[4, 32, 32], ui8>, %s1: !dsv41.tensor<[4, 32, 2], ui8>, %w3: !dsv41.tensor<[4, 32, 32], ui8>, %s3: !dsv41.tensor<[4, 32, 2], ui8>, %w2: !dsv41.tensor<[4, 64, 16], ui8>, %s2: !dsv41.tensor<[4, 64, 1], ui8>, %shared_w1: !dsv41.tensor<[32, 64], f8E4M3FN>, %shared_s1: !dsv41.tensor<[1, 2], ui8>, %shared_w3: !dsv41.tensor<[32, 64], f8E4M3FN>, %shared_s3: !dsv41.tensor<[1, 2], ui8>, %shared_w2: !dsv41.tensor<[64, 32], f8E4M3FN>, %shared_s2: !dsv41.tensor<[2, 1], ui8>) -> !dsv41.tensor<[T, 64], bf16> attributes {dsv41.symbols = {T = [1, 512]}} {
  %routed = dsv41.experts %x, %ids, %weights, %w1, %s1, %w3, %s3, %w2, %s2 {limit = 10.0} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8> -> !dsv41.tensor<[T, 64], f32>
  %wide1 = dsv41.dequantize_weight %shared_w1, %shared_s1 : !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8> -> !dsv41.tensor<[32, 64], bf16>
  %none = torch.constant.none
  %gate = torch.aten.linear %x, %wide1, %none : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[32, 64], bf16>, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %wide3 = dsv41.dequantize_weight %shared_w3, %shared_s3 : !dsv41.tensor<[32, 64], f8E4M3FN>, !dsv41.tensor<[1, 2], ui8> -> !dsv41.tensor<[32, 64], bf16>
  %up = torch.aten.linear %x, %wide3, %none : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[32, 64], bf16>, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %to = torch.aten.to.dtype %gate, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %float10.0 = torch.constant.float 10.0
  %clamp = torch.aten.clamp %to, %none, %float10.0 : !dsv41.tensor<[T, 32], f32>, !torch.none, !torch.float -> !dsv41.tensor<[T, 32], f32>
  %neg = torch.aten.neg %clamp : !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %exp = torch.aten.exp %neg : !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %float1.0 = torch.constant.float 1.0
  %int1 = torch.constant.int 1
  %add = torch.aten.add.Scalar %exp, %float1.0, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %div = torch.aten.div.Tensor %clamp, %add : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_1 = torch.aten.to.dtype %up, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %float-10.0 = torch.constant.float -10.0
  %clamp_1 = torch.aten.clamp %to_1, %float-10.0, %float10.0 : !dsv41.tensor<[T, 32], f32>, !torch.float, !torch.float -> !dsv41.tensor<[T, 32], f32>
  %mul = torch.aten.mul.Tensor %div, %clamp_1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %int15 = torch.constant.int 15
  %to_2 = torch.aten.to.dtype %mul, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %hidden = dsv41.fake_quantize %to_2 {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 32], bf16> -> !dsv41.tensor<[T, 32], bf16>
  %down = dsv41.dequantize_weight %shared_w2, %shared_s2 : !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[64, 32], bf16>
  %shared = torch.aten.linear %hidden, %down, %none : !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[64, 32], bf16>, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  %shared32 = torch.aten.to.dtype %shared, %int6, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %total = torch.aten.add.Tensor %routed, %shared32, %int1 : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32>, !torch.int -> !dsv41.tensor<[T, 64], f32>
  %y = torch.aten.to.dtype %total, %int15, %false, %false, %none : !dsv41.tensor<[T, 64], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %y = dsv41.moe
// CHECK-SAME: unpack = "part_0", activate = "part_1", unpack_shared = "part_2", activate_shared = "part_3", epilogue = "part_4"
// CHECK: func.func @part_2(
// CHECK-NOT: torch.aten.linear
// CHECK: func.func @part_4(
// CHECK: torch.aten.add.Tensor
