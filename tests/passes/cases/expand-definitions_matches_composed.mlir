// RUN: expand-definitions{composed=true}
// MATCHES: 1
// Only the site, whose Sinkhorn is to become a function of its own; the norms' means and the quantization wait.

func.func @f(%h: !dsv41.tensor<[T, 2, 32], bf16>, %pre: !dsv41.tensor<[T, 2], f32>, %fn: !dsv41.tensor<[8, 64], f32>, %base: !dsv41.tensor<[8], f32>, %scale: !dsv41.tensor<[3], f32>, %weight: !dsv41.tensor<[32], bf16>) -> (!dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 2, 2], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %x, %next, %post, %comb = dsv41.mhc_enter %h, %pre, %fn, %base, %scale, %weight {iterations = 20, eps = 1.0e-06, mix_eps = 1.0e-20, norm_eps = 1.0e-20} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[8, 64], f32>, !dsv41.tensor<[8], f32>, !dsv41.tensor<[3], f32>, !dsv41.tensor<[32], bf16> -> !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2, 2], f32>
  %quantized = dsv41.fake_quantize %x {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 32], bf16> -> !dsv41.tensor<[T, 32], bf16>
  func.return %quantized, %comb : !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 2, 2], f32>
}

// CHECK-NOT: dsv41.mhc
// CHECK: torch.aten.mean.dim
// CHECK: %comb = dsv41.sinkhorn {{.*}} {iterations = 20, eps = 1.0e-06
// CHECK: %quantized = dsv41.fake_quantize %x
