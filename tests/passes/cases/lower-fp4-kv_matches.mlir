// RUN: lower-fp4-kv
// MATCHES: 2
// One op from the latent to the page.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %positions: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[8], f32>, %slots: !dsv41.tensor<[T], si64>, %cache: !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>) -> (!dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 64], S = [1, 4]}} {
  %cos, %sin = dsv41.rotary %positions, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[8], f32> -> !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int48 = torch.constant.int 48
  %int1 = torch.constant.int 1
  %split_with_sizes_0 = torch.aten.slice.Tensor %x, %int-1, %int0, %int48, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 48], bf16>
  %int64 = torch.constant.int 64
  %split_with_sizes_1 = torch.aten.slice.Tensor %x, %int-1, %int48, %int64, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 16], bf16>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %to = torch.aten.to.dtype %split_with_sizes_1, %int6, %false, %false, %none : !dsv41.tensor<[T, 16], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 16], f32>
  %int8 = torch.constant.int 8
  %int2 = torch.constant.int 2
  %list = torch.prim.ListConstruct %int8, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten = torch.aten.unflatten.int %to, %int-1, %list : !dsv41.tensor<[T, 16], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 8, 2], f32>
  %select = torch.aten.select.int %unflatten, %int-1, %int0 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %select_1 = torch.aten.select.int %unflatten, %int-1, %int1 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %mul = torch.aten.mul.Tensor %select, %cos : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %mul_1 = torch.aten.mul.Tensor %select_1, %sin : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %sub = torch.aten.sub.Tensor %mul, %mul_1, %int1 : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %mul_2 = torch.aten.mul.Tensor %select, %sin : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %mul_3 = torch.aten.mul.Tensor %select_1, %cos : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %add = torch.aten.add.Tensor %mul_2, %mul_3, %int1 : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %list_1 = torch.prim.ListConstruct %sub, %add : (!dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>) -> !torch.list<vtensor>
  %stack = torch.aten.stack %list_1, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 8, 2], f32>
  %int-2 = torch.constant.int -2
  %flatten = torch.aten.flatten.using_ints %stack, %int-2, %int-1 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 16], f32>
  %int15 = torch.constant.int 15
  %to_1 = torch.aten.to.dtype %flatten, %int15, %false, %false, %none : !dsv41.tensor<[T, 16], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 16], bf16>
  %list_2 = torch.prim.ListConstruct %split_with_sizes_0, %to_1 : (!dsv41.tensor<[T, 48], bf16>, !dsv41.tensor<[T, 16], bf16>) -> !torch.list<vtensor>
  %cat = torch.aten.cat %list_2, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %quantize = dsv41.quantize %cat {row_format = "fp4_e4m3"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 36], ui8>
  %stored = dsv41.store %cache, %quantize, %slots {row_format = "fp4_e4m3", page = 4} : !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  func.return %stored : !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
}

// CHECK: %stored = dsv41.write_rows %cache, %x, %cos, %sin, none, %slots {norm_eps = 0.0, row_format = "fp4_e4m3", page = 4
// CHECK-NOT: dsv41.store
// CHECK-NOT: dsv41.quantize
