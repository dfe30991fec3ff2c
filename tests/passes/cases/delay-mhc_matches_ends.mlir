// RUN: delay-mhc
// MATCHES: 2
// The first site has no expand and takes stream 0; behind the last sublayer is no predictor, and some rows are wanted.

func.func @f(%h: !dsv41.tensor<[T, 2, 32], bf16>, %fn: !dsv41.tensor<[8, 64], f32>, %base: !dsv41.tensor<[8], f32>, %scale: !dsv41.tensor<[3], f32>, %weight: !dsv41.tensor<[32], bf16>, %last: !dsv41.tensor<[32], bf16>, %rows: !dsv41.tensor<[R], si64>) -> !dsv41.tensor<[R, 32], bf16> attributes {dsv41.symbols = {T = [1, 512], R = [1, 512]}, dsv41.outputs = ["result0"]} {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %select = torch.aten.select.int %h, %int-1, %int0 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2], bf16>
  %int6 = torch.constant.int 6
  %none = torch.constant.none
  %false = torch.constant.bool false
  %zeros_like = torch.aten.zeros_like %select, %int6, %none, %none, %false, %none : !dsv41.tensor<[T, 2], bf16>, !torch.int, !torch.none, !torch.none, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2], f32>
  %int1 = torch.constant.int 1
  %slice_1 = torch.aten.slice.Tensor %zeros_like, %int1, %int0, %int1, %int1 : !dsv41.tensor<[T, 2], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %add = torch.aten.add.Scalar %slice_1, %int1, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %int9223372036854775807 = torch.constant.int 9223372036854775807
  %slice_2 = torch.aten.slice.Tensor %zeros_like, %int1, %int1, %int9223372036854775807, %int1 : !dsv41.tensor<[T, 2], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %list = torch.prim.ListConstruct %add, %slice_2 : (!dsv41.tensor<[T, 1], f32>, !dsv41.tensor<[T, 1], f32>) -> !torch.list<vtensor>
  %cat = torch.aten.cat %list, %int-1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %flatten = torch.aten.flatten.using_ints %h, %int1, %int-1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %int7 = torch.constant.int 7
  %to = torch.aten.to.dtype %flatten, %int7, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f64>
  %to_1 = torch.aten.to.dtype %fn, %int7, %false, %false, %none : !dsv41.tensor<[8, 64], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[8, 64], f64>
  %linear = torch.aten.linear %to, %to_1, %none : !dsv41.tensor<[T, 64], f64>, !dsv41.tensor<[8, 64], f64>, !torch.none -> !dsv41.tensor<[T, 8], f64>
  %to_2 = torch.aten.to.dtype %linear, %int6, %false, %false, %none : !dsv41.tensor<[T, 8], f64>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 8], f32>
  %to_3 = torch.aten.to.dtype %flatten, %int6, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %square = torch.aten.square %to_3 : !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  %list_1 = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %mean = torch.aten.mean.dim %square, %list_1, %true, %none : !dsv41.tensor<[T, 64], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %float1e-20 = torch.constant.float 1.0e-20
  %add_1 = torch.aten.add.Scalar %mean, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt = torch.aten.rsqrt %add_1 : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul = torch.aten.mul.Tensor %to_2, %rsqrt : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 8], f32>
  %int2 = torch.constant.int 2
  %split_with_sizes_0 = torch.aten.slice.Tensor %mul, %int-1, %int0, %int2, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %int4 = torch.constant.int 4
  %split_with_sizes_1 = torch.aten.slice.Tensor %mul, %int-1, %int2, %int4, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %int8 = torch.constant.int 8
  %split_with_sizes_2 = torch.aten.slice.Tensor %mul, %int-1, %int4, %int8, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 4], f32>
  %split_with_sizes_1_0 = torch.aten.slice.Tensor %base, %int0, %int0, %int2, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[2], f32>
  %split_with_sizes_1_1 = torch.aten.slice.Tensor %base, %int0, %int2, %int4, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[2], f32>
  %split_with_sizes_1_2 = torch.aten.slice.Tensor %base, %int0, %int4, %int8, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[4], f32>
  %split_with_sizes_2_0 = torch.aten.slice.Tensor %scale, %int0, %int0, %int1, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %split_with_sizes_2_1 = torch.aten.slice.Tensor %scale, %int0, %int1, %int2, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %int3 = torch.constant.int 3
  %split_with_sizes_2_2 = torch.aten.slice.Tensor %scale, %int0, %int2, %int3, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %mul_1 = torch.aten.mul.Tensor %split_with_sizes_0, %split_with_sizes_2_0 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 2], f32>
  %add_2 = torch.aten.add.Tensor %mul_1, %split_with_sizes_1_0, %int1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %sigmoid = torch.aten.sigmoid %add_2 : !dsv41.tensor<[T, 2], f32> -> !dsv41.tensor<[T, 2], f32>
  %float1e-06 = torch.constant.float 1.0e-06
  %add_3 = torch.aten.add.Scalar %sigmoid, %float1e-06, %int1 : !dsv41.tensor<[T, 2], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %mul_2 = torch.aten.mul.Tensor %split_with_sizes_1, %split_with_sizes_2_1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 2], f32>
  %add_4 = torch.aten.add.Tensor %mul_2, %split_with_sizes_1_1, %int1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %sigmoid_1 = torch.aten.sigmoid %add_4 : !dsv41.tensor<[T, 2], f32> -> !dsv41.tensor<[T, 2], f32>
  %mul_3 = torch.aten.mul.Scalar %sigmoid_1, %int2 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %mul_4 = torch.aten.mul.Tensor %split_with_sizes_2, %split_with_sizes_2_2 : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 4], f32>
  %add_5 = torch.aten.add.Tensor %mul_4, %split_with_sizes_1_2, %int1 : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[4], f32>, !torch.int -> !dsv41.tensor<[T, 4], f32>
  %list_2 = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten = torch.aten.unflatten.int %add_5, %int-1, %list_2 : !dsv41.tensor<[T, 4], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 2], f32>
  %sinkhorn = dsv41.sinkhorn %unflatten {iterations = 2, eps = 1.0e-06} : !dsv41.tensor<[T, 2, 2], f32> -> !dsv41.tensor<[T, 2, 2], f32>
  %unsqueeze = torch.aten.unsqueeze %cat, %int-1 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1], f32>
  %to_4 = torch.aten.to.dtype %h, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], f32>
  %mul_5 = torch.aten.mul.Tensor %unsqueeze, %to_4 : !dsv41.tensor<[T, 2, 1], f32>, !dsv41.tensor<[T, 2, 32], f32> -> !dsv41.tensor<[T, 2, 32], f32>
  %select_1 = torch.aten.select.int %mul_5, %int1, %int0 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %select_2 = torch.aten.select.int %mul_5, %int1, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %add_6 = torch.aten.add.Tensor %select_1, %select_2, %int1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %unsqueeze_1 = torch.aten.unsqueeze %add_6, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 32], f32>
  %squeeze = torch.aten.squeeze.dim %unsqueeze_1, %int1 : !dsv41.tensor<[T, 1, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %int15 = torch.constant.int 15
  %to_5 = torch.aten.to.dtype %squeeze, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %to_6 = torch.aten.to.dtype %to_5, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %square_1 = torch.aten.square %to_6 : !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %mean_1 = torch.aten.mean.dim %square_1, %list_1, %true, %none : !dsv41.tensor<[T, 32], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %add_7 = torch.aten.add.Scalar %mean_1, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt_1 = torch.aten.rsqrt %add_7 : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul_6 = torch.aten.mul.Tensor %to_6, %rsqrt_1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_7 = torch.aten.to.dtype %weight, %int6, %false, %false, %none : !dsv41.tensor<[32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[32], f32>
  %mul_7 = torch.aten.mul.Tensor %to_7, %mul_6 : !dsv41.tensor<[32], f32>, !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_8 = torch.aten.to.dtype %mul_7, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %unsqueeze_2 = torch.aten.unsqueeze %sinkhorn, %int-1 : !dsv41.tensor<[T, 2, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 2, 1], f32>
  %unsqueeze_3 = torch.aten.unsqueeze %to_4, %int2 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1, 32], f32>
  %mul_8 = torch.aten.mul.Tensor %unsqueeze_2, %unsqueeze_3 : !dsv41.tensor<[T, 2, 2, 1], f32>, !dsv41.tensor<[T, 2, 1, 32], f32> -> !dsv41.tensor<[T, 2, 2, 32], f32>
  %select_3 = torch.aten.select.int %mul_8, %int1, %int0 : !dsv41.tensor<[T, 2, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %select_4 = torch.aten.select.int %mul_8, %int1, %int1 : !dsv41.tensor<[T, 2, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %add_8 = torch.aten.add.Tensor %select_3, %select_4, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %unsqueeze_4 = torch.aten.unsqueeze %add_8, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 2, 32], f32>
  %squeeze_1 = torch.aten.squeeze.dim %unsqueeze_4, %int1 : !dsv41.tensor<[T, 1, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %unsqueeze_5 = torch.aten.unsqueeze %mul_3, %int-1 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1], f32>
  %to_10 = torch.aten.to.dtype %to_8, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %unsqueeze_6 = torch.aten.unsqueeze %to_10, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 32], f32>
  %mul_9 = torch.aten.mul.Tensor %unsqueeze_5, %unsqueeze_6 : !dsv41.tensor<[T, 2, 1], f32>, !dsv41.tensor<[T, 1, 32], f32> -> !dsv41.tensor<[T, 2, 32], f32>
  %add_9 = torch.aten.add.Tensor %mul_9, %squeeze_1, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %to_11 = torch.aten.to.dtype %add_9, %int15, %false, %false, %none : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], bf16>
  %list_3 = torch.prim.ListConstruct %rows : (!dsv41.tensor<[R], si64>) -> !torch.list<vtensor>
  %index = torch.aten.index.Tensor_hacked_twin %to_11, %list_3 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.list<vtensor> -> !dsv41.tensor<[R, 2, 32], bf16>
  %index_1 = torch.aten.index.Tensor_hacked_twin %add_3, %list_3 : !dsv41.tensor<[T, 2], f32>, !torch.list<vtensor> -> !dsv41.tensor<[R, 2], f32>
  %unsqueeze_7 = torch.aten.unsqueeze %index_1, %int-1 : !dsv41.tensor<[R, 2], f32>, !torch.int -> !dsv41.tensor<[R, 2, 1], f32>
  %to_12 = torch.aten.to.dtype %index, %int6, %false, %false, %none : !dsv41.tensor<[R, 2, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[R, 2, 32], f32>
  %mul_10 = torch.aten.mul.Tensor %unsqueeze_7, %to_12 : !dsv41.tensor<[R, 2, 1], f32>, !dsv41.tensor<[R, 2, 32], f32> -> !dsv41.tensor<[R, 2, 32], f32>
  %select_5 = torch.aten.select.int %mul_10, %int1, %int0 : !dsv41.tensor<[R, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[R, 32], f32>
  %select_6 = torch.aten.select.int %mul_10, %int1, %int1 : !dsv41.tensor<[R, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[R, 32], f32>
  %add_10 = torch.aten.add.Tensor %select_5, %select_6, %int1 : !dsv41.tensor<[R, 32], f32>, !dsv41.tensor<[R, 32], f32>, !torch.int -> !dsv41.tensor<[R, 32], f32>
  %unsqueeze_8 = torch.aten.unsqueeze %add_10, %int1 : !dsv41.tensor<[R, 32], f32>, !torch.int -> !dsv41.tensor<[R, 1, 32], f32>
  %squeeze_2 = torch.aten.squeeze.dim %unsqueeze_8, %int1 : !dsv41.tensor<[R, 1, 32], f32>, !torch.int -> !dsv41.tensor<[R, 32], f32>
  %to_13 = torch.aten.to.dtype %squeeze_2, %int15, %false, %false, %none : !dsv41.tensor<[R, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[R, 32], bf16>
  %to_14 = torch.aten.to.dtype %to_13, %int6, %false, %false, %none : !dsv41.tensor<[R, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[R, 32], f32>
  %square_2 = torch.aten.square %to_14 : !dsv41.tensor<[R, 32], f32> -> !dsv41.tensor<[R, 32], f32>
  %mean_2 = torch.aten.mean.dim %square_2, %list_1, %true, %none : !dsv41.tensor<[R, 32], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[R, 1], f32>
  %add_11 = torch.aten.add.Scalar %mean_2, %float1e-20, %int1 : !dsv41.tensor<[R, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[R, 1], f32>
  %rsqrt_2 = torch.aten.rsqrt %add_11 : !dsv41.tensor<[R, 1], f32> -> !dsv41.tensor<[R, 1], f32>
  %mul_11 = torch.aten.mul.Tensor %to_14, %rsqrt_2 : !dsv41.tensor<[R, 32], f32>, !dsv41.tensor<[R, 1], f32> -> !dsv41.tensor<[R, 32], f32>
  %to_15 = torch.aten.to.dtype %last, %int6, %false, %false, %none : !dsv41.tensor<[32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[32], f32>
  %mul_12 = torch.aten.mul.Tensor %to_15, %mul_11 : !dsv41.tensor<[32], f32>, !dsv41.tensor<[R, 32], f32> -> !dsv41.tensor<[R, 32], f32>
  %to_16 = torch.aten.to.dtype %mul_12, %int15, %false, %false, %none : !dsv41.tensor<[R, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[R, 32], bf16>
  func.return %to_16 : !dsv41.tensor<[R, 32], bf16>
}

// CHECK: %cat = torch.aten.cat
// CHECK-NEXT: %to_8, %add_3, %mul_3, %sinkhorn = dsv41.mhc_enter %h, %cat, %fn, %base, %scale, %weight {iterations = 2
// CHECK-NEXT: %to_16 = dsv41.mhc_leave %to_8, %h, %mul_3, %sinkhorn, %add_3, %last, %rows {norm_eps = 1.0e-20
// CHECK-NEXT: func.return %to_16
