// RUN: lower-sparse-attention
// MATCHES: 1
// The window that is read is the one before the store; rotated queries stay for another reader; notes stay on the op.

func.func @f(%q: !dsv41.tensor<[T, 64], bf16>, %positions: !dsv41.tensor<[T], si64>, %store: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[8], f32>, %window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 33], ui8>, %index: !dsv41.tensor<[T, 8], si32>, %sink: !dsv41.tensor<[2], f32>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], N = [1, 64], S = [1, 4]}} {
  %cos, %sin = dsv41.rotary %positions, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[8], f32> -> !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>
  %int-1 = torch.constant.int -1
  %int2 = torch.constant.int 2
  %int32 = torch.constant.int 32
  %list = torch.prim.ListConstruct %int2, %int32 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten = torch.aten.unflatten.int %q, %int-1, %list : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 32], bf16>
  %int0 = torch.constant.int 0
  %int16 = torch.constant.int 16
  %int1 = torch.constant.int 1
  %split_with_sizes = torch.aten.slice.Tensor %unflatten, %int-1, %int0, %int16, %int1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], bf16>
  %split_with_sizes_1 = torch.aten.slice.Tensor %unflatten, %int-1, %int16, %int32, %int1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], bf16>
  %unsqueeze = torch.aten.unsqueeze %cos, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 1, 8], f32>
  %unsqueeze_1 = torch.aten.unsqueeze %sin, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 1, 8], f32>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %to = torch.aten.to.dtype %split_with_sizes_1, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 16], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 16], f32>
  %int8 = torch.constant.int 8
  %list_1 = torch.prim.ListConstruct %int8, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten_1 = torch.aten.unflatten.int %to, %int-1, %list_1 : !dsv41.tensor<[T, 2, 16], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 8, 2], f32>
  %select = torch.aten.select.int %unflatten_1, %int-1, %int0 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %select_1 = torch.aten.select.int %unflatten_1, %int-1, %int1 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %mul = torch.aten.mul.Tensor %select, %unsqueeze : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_1 = torch.aten.mul.Tensor %select_1, %unsqueeze_1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %sub = torch.aten.sub.Tensor %mul, %mul_1, %int1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_2 = torch.aten.mul.Tensor %select, %unsqueeze_1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_3 = torch.aten.mul.Tensor %select_1, %unsqueeze : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %add = torch.aten.add.Tensor %mul_2, %mul_3, %int1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %list_2 = torch.prim.ListConstruct %sub, %add : (!dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>) -> !torch.list<vtensor>
  %stack = torch.aten.stack %list_2, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 2, 8, 2], f32>
  %int-2 = torch.constant.int -2
  %flatten = torch.aten.flatten.using_ints %stack, %int-2, %int-1 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], f32>
  %int15 = torch.constant.int 15
  %to_1 = torch.aten.to.dtype %flatten, %int15, %false, %false, %none : !dsv41.tensor<[T, 2, 16], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 16], bf16>
  %list_3 = torch.prim.ListConstruct %split_with_sizes, %to_1 : (!dsv41.tensor<[T, 2, 16], bf16>, !dsv41.tensor<[T, 2, 16], bf16>) -> !torch.list<vtensor>
  %cat = torch.aten.cat %list_3, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 2, 32], bf16>
  %attended = dsv41.sparse_attention %cat, %window, %rows, %index, none, none, %sink {scale = 0.125, window_page = 8, main_page = 4, mode = "swa"} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>, !dsv41.tensor<[T, 33], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 32], bf16>
  %new = dsv41.store %window, %rows, %store {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>, !dsv41.tensor<[T, 33], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>
  %neg = torch.aten.neg %sin : !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %split_with_sizes_2 = torch.aten.slice.Tensor %attended, %int-1, %int0, %int16, %int1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], bf16>
  %split_with_sizes_3 = torch.aten.slice.Tensor %attended, %int-1, %int16, %int32, %int1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], bf16>
  %unsqueeze_2 = torch.aten.unsqueeze %neg, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 1, 8], f32>
  %to_2 = torch.aten.to.dtype %split_with_sizes_3, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 16], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 16], f32>
  %unflatten_2 = torch.aten.unflatten.int %to_2, %int-1, %list_1 : !dsv41.tensor<[T, 2, 16], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 8, 2], f32>
  %select_2 = torch.aten.select.int %unflatten_2, %int-1, %int0 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %select_3 = torch.aten.select.int %unflatten_2, %int-1, %int1 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_4 = torch.aten.mul.Tensor %select_2, %unsqueeze : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_5 = torch.aten.mul.Tensor %select_3, %unsqueeze_2 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %sub_1 = torch.aten.sub.Tensor %mul_4, %mul_5, %int1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_6 = torch.aten.mul.Tensor %select_2, %unsqueeze_2 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %mul_7 = torch.aten.mul.Tensor %select_3, %unsqueeze : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 1, 8], f32> -> !dsv41.tensor<[T, 2, 8], f32>
  %add_1 = torch.aten.add.Tensor %mul_6, %mul_7, %int1 : !dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>, !torch.int -> !dsv41.tensor<[T, 2, 8], f32>
  %list_4 = torch.prim.ListConstruct %sub_1, %add_1 : (!dsv41.tensor<[T, 2, 8], f32>, !dsv41.tensor<[T, 2, 8], f32>) -> !torch.list<vtensor>
  %stack_1 = torch.aten.stack %list_4, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 2, 8, 2], f32>
  %flatten_1 = torch.aten.flatten.using_ints %stack_1, %int-2, %int-1 : !dsv41.tensor<[T, 2, 8, 2], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 16], f32>
  %to_3 = torch.aten.to.dtype %flatten_1, %int15, %false, %false, %none : !dsv41.tensor<[T, 2, 16], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 16], bf16>
  %list_5 = torch.prim.ListConstruct %split_with_sizes_2, %to_3 : (!dsv41.tensor<[T, 2, 16], bf16>, !dsv41.tensor<[T, 2, 16], bf16>) -> !torch.list<vtensor>
  %cat_1 = torch.aten.cat %list_5, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 2, 32], bf16>
  %y = torch.aten.flatten.using_ints %cat_1, %int1, %int-1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  func.return %y, %cat, %new : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 32 | ue8m0 / 32>>
}

// CHECK:     %cat = torch.aten.cat
// CHECK:     %y = dsv41.attend %q, %cos, %sin, %window, %rows, %index, none, none, %sink {scale = 0.125, window_page = 8, main_page = 4, mode = "swa"
// CHECK:     %new = dsv41.store %window,
// CHECK:     func.return %y, %cat, %new
