// RUN: lower-fp8-window
// MATCHES: 1
// What reads the ring before the store still reads it before the store.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %weight: !dsv41.tensor<[64], bf16>, %positions: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[8], f32>, %slots: !dsv41.tensor<[T], si64>, %cache: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 66], ui8>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 64], S = [1, 4]}} {
  %cos, %sin = dsv41.rotary %positions, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[8], f32> -> !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %to = torch.aten.to.dtype %x, %int6, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %square = torch.aten.square %to : !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  %int-1 = torch.constant.int -1
  %list = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %mean = torch.aten.mean.dim %square, %list, %true, %none : !dsv41.tensor<[T, 64], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %float1e-06 = torch.constant.float 1.0e-06
  %int1 = torch.constant.int 1
  %add = torch.aten.add.Scalar %mean, %float1e-06, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt = torch.aten.rsqrt %add : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul = torch.aten.mul.Tensor %to, %rsqrt : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 64], f32>
  %to_1 = torch.aten.to.dtype %weight, %int6, %false, %false, %none : !dsv41.tensor<[64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[64], f32>
  %mul_1 = torch.aten.mul.Tensor %to_1, %mul : !dsv41.tensor<[64], f32>, !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  %int15 = torch.constant.int 15
  %to_2 = torch.aten.to.dtype %mul_1, %int15, %false, %false, %none : !dsv41.tensor<[T, 64], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  %int0 = torch.constant.int 0
  %int48 = torch.constant.int 48
  %split_with_sizes_0 = torch.aten.slice.Tensor %to_2, %int-1, %int0, %int48, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 48], bf16>
  %int64 = torch.constant.int 64
  %split_with_sizes_1 = torch.aten.slice.Tensor %to_2, %int-1, %int48, %int64, %int1 : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 16], bf16>
  %to_3 = torch.aten.to.dtype %split_with_sizes_1, %int6, %false, %false, %none : !dsv41.tensor<[T, 16], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 16], f32>
  %int8 = torch.constant.int 8
  %int2 = torch.constant.int 2
  %list_1 = torch.prim.ListConstruct %int8, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten = torch.aten.unflatten.int %to_3, %int-1, %list_1 : !dsv41.tensor<[T, 16], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 8, 2], f32>
  %select = torch.aten.select.int %unflatten, %int-1, %int0 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %select_1 = torch.aten.select.int %unflatten, %int-1, %int1 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %mul_2 = torch.aten.mul.Tensor %select, %cos : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %mul_3 = torch.aten.mul.Tensor %select_1, %sin : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %sub = torch.aten.sub.Tensor %mul_2, %mul_3, %int1 : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %mul_4 = torch.aten.mul.Tensor %select, %sin : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %mul_5 = torch.aten.mul.Tensor %select_1, %cos : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %add_1 = torch.aten.add.Tensor %mul_4, %mul_5, %int1 : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %list_2 = torch.prim.ListConstruct %sub, %add_1 : (!dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>) -> !torch.list<vtensor>
  %stack = torch.aten.stack %list_2, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 8, 2], f32>
  %int-2 = torch.constant.int -2
  %flatten = torch.aten.flatten.using_ints %stack, %int-2, %int-1 : !dsv41.tensor<[T, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 16], f32>
  %to_4 = torch.aten.to.dtype %flatten, %int15, %false, %false, %none : !dsv41.tensor<[T, 16], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 16], bf16>
  %list_3 = torch.prim.ListConstruct %split_with_sizes_0, %to_4 : (!dsv41.tensor<[T, 48], bf16>, !dsv41.tensor<[T, 16], bf16>) -> !torch.list<vtensor>
  %cat = torch.aten.cat %list_3, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %quantize = dsv41.quantize %cat {row_format = "fp8_e8m0"} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 66], ui8>
  %old = dsv41.load %cache, %slots {row_format = "fp8_e8m0", page = 8, row_width = 66} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 66], ui8>
  %stored = dsv41.store %cache, %quantize, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  func.return %old, %stored : !dsv41.tensor<[T, 66], ui8>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
}

// CHECK: dsv41.pack_rows
// CHECK: %old = dsv41.load %cache
// CHECK: %stored = dsv41.store %cache
