// RUN: outline-regions
// MATCHES: 4
// A weight is decoded in the region that uses it and not in the first one, where it would have to be held.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 32], bf16>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %none = torch.constant.none
  %weight = dsv41.weight {name = "a.weight", source = "checkpoint"} : !dsv41.tensor<[32, 6], f8E4M3FN>
  %scale = dsv41.weight {name = "a.scale", source = "checkpoint"} : !dsv41.tensor<[1, 1], ui8>
  %decoded = dsv41.dequantize_weight %weight, %scale : !dsv41.tensor<[32, 6], f8E4M3FN>, !dsv41.tensor<[1, 1], ui8> -> !dsv41.tensor<[32, 6], bf16>
  %int15 = torch.constant.int 15
  %false = torch.constant.bool false
  %b = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %cos, %sin = dsv41.rotary %slots, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
  %narrow = torch.aten.to.dtype %cos, %int15, %false, %false, %none : !dsv41.tensor<[T, 6], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 6], bf16>
  %y = torch.aten.linear %narrow, %decoded, %none : !dsv41.tensor<[T, 6], bf16>, !dsv41.tensor<[32, 6], bf16>, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  func.return %b, %y : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 32], bf16>
}

// CHECK:      %b = dsv41.call @region_0(%x)
// CHECK:      %y = dsv41.call @region_1(%weight, %scale, %cos)
// CHECK:      func.func @region_1
// CHECK:      dsv41.dequantize_weight
