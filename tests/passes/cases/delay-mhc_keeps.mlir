// RUN: delay-mhc
// MATCHES: 0
// Something else reads the input before its norm, which the op would not give: the chain stays.

func.func @f(%y: !dsv41.tensor<[T, 32], bf16>, %h: !dsv41.tensor<[T, 2, 32], bf16>, %post: !dsv41.tensor<[T, 2], f32>, %comb: !dsv41.tensor<[T, 2, 2], f32>, %pre: !dsv41.tensor<[T, 2], f32>, %fn: !dsv41.tensor<[8, 64], f32>, %base: !dsv41.tensor<[8], f32>, %scale: !dsv41.tensor<[3], f32>, %weight: !dsv41.tensor<[32], bf16>) -> (!dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2, 2], f32>) attributes {dsv41.symbols = {T = [1, 512]}, dsv41.outputs = ["result0", "result1", "result2", "result3", "result4"]} {
  %int-1 = torch.constant.int -1
  %unsqueeze = torch.aten.unsqueeze %comb, %int-1 : !dsv41.tensor<[T, 2, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 2, 1], f32>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %to = torch.aten.to.dtype %h, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], f32>
  %int2 = torch.constant.int 2
  %unsqueeze_1 = torch.aten.unsqueeze %to, %int2 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1, 32], f32>
  %mul = torch.aten.mul.Tensor %unsqueeze, %unsqueeze_1 : !dsv41.tensor<[T, 2, 2, 1], f32>, !dsv41.tensor<[T, 2, 1, 32], f32> -> !dsv41.tensor<[T, 2, 2, 32], f32>
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %select = torch.aten.select.int %mul, %int1, %int0 : !dsv41.tensor<[T, 2, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %select_1 = torch.aten.select.int %mul, %int1, %int1 : !dsv41.tensor<[T, 2, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %add = torch.aten.add.Tensor %select, %select_1, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %unsqueeze_2 = torch.aten.unsqueeze %add, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 2, 32], f32>
  %squeeze = torch.aten.squeeze.dim %unsqueeze_2, %int1 : !dsv41.tensor<[T, 1, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %unsqueeze_3 = torch.aten.unsqueeze %post, %int-1 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1], f32>
  %to_1 = torch.aten.to.dtype %y, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %unsqueeze_4 = torch.aten.unsqueeze %to_1, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 32], f32>
  %mul_1 = torch.aten.mul.Tensor %unsqueeze_3, %unsqueeze_4 : !dsv41.tensor<[T, 2, 1], f32>, !dsv41.tensor<[T, 1, 32], f32> -> !dsv41.tensor<[T, 2, 32], f32>
  %add_1 = torch.aten.add.Tensor %mul_1, %squeeze, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !dsv41.tensor<[T, 2, 32], f32>, !torch.int -> !dsv41.tensor<[T, 2, 32], f32>
  %int15 = torch.constant.int 15
  %to_2 = torch.aten.to.dtype %add_1, %int15, %false, %false, %none : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], bf16>
  %flatten = torch.aten.flatten.using_ints %to_2, %int1, %int-1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  %int7 = torch.constant.int 7
  %to_3 = torch.aten.to.dtype %flatten, %int7, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f64>
  %to_4 = torch.aten.to.dtype %fn, %int7, %false, %false, %none : !dsv41.tensor<[8, 64], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[8, 64], f64>
  %linear = torch.aten.linear %to_3, %to_4, %none : !dsv41.tensor<[T, 64], f64>, !dsv41.tensor<[8, 64], f64>, !torch.none -> !dsv41.tensor<[T, 8], f64>
  %to_5 = torch.aten.to.dtype %linear, %int6, %false, %false, %none : !dsv41.tensor<[T, 8], f64>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 8], f32>
  %to_6 = torch.aten.to.dtype %flatten, %int6, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %square = torch.aten.square %to_6 : !dsv41.tensor<[T, 64], f32> -> !dsv41.tensor<[T, 64], f32>
  %list = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %mean = torch.aten.mean.dim %square, %list, %true, %none : !dsv41.tensor<[T, 64], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %float1e-20 = torch.constant.float 1.0e-20
  %add_2 = torch.aten.add.Scalar %mean, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt = torch.aten.rsqrt %add_2 : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul_2 = torch.aten.mul.Tensor %to_5, %rsqrt : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 8], f32>
  %split_with_sizes_0 = torch.aten.slice.Tensor %mul_2, %int-1, %int0, %int2, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %int4 = torch.constant.int 4
  %split_with_sizes_1 = torch.aten.slice.Tensor %mul_2, %int-1, %int2, %int4, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %int8 = torch.constant.int 8
  %split_with_sizes_2 = torch.aten.slice.Tensor %mul_2, %int-1, %int4, %int8, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 4], f32>
  %split_with_sizes_1_0 = torch.aten.slice.Tensor %base, %int0, %int0, %int2, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[2], f32>
  %split_with_sizes_1_1 = torch.aten.slice.Tensor %base, %int0, %int2, %int4, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[2], f32>
  %split_with_sizes_1_2 = torch.aten.slice.Tensor %base, %int0, %int4, %int8, %int1 : !dsv41.tensor<[8], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[4], f32>
  %split_with_sizes_2_0 = torch.aten.slice.Tensor %scale, %int0, %int0, %int1, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %split_with_sizes_2_1 = torch.aten.slice.Tensor %scale, %int0, %int1, %int2, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %int3 = torch.constant.int 3
  %split_with_sizes_2_2 = torch.aten.slice.Tensor %scale, %int0, %int2, %int3, %int1 : !dsv41.tensor<[3], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[1], f32>
  %mul_3 = torch.aten.mul.Tensor %split_with_sizes_0, %split_with_sizes_2_0 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 2], f32>
  %add_3 = torch.aten.add.Tensor %mul_3, %split_with_sizes_1_0, %int1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %sigmoid = torch.aten.sigmoid %add_3 : !dsv41.tensor<[T, 2], f32> -> !dsv41.tensor<[T, 2], f32>
  %float1e-06 = torch.constant.float 1.0e-06
  %add_4 = torch.aten.add.Scalar %sigmoid, %float1e-06, %int1 : !dsv41.tensor<[T, 2], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %mul_4 = torch.aten.mul.Tensor %split_with_sizes_1, %split_with_sizes_2_1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 2], f32>
  %add_5 = torch.aten.add.Tensor %mul_4, %split_with_sizes_1_1, %int1 : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %sigmoid_1 = torch.aten.sigmoid %add_5 : !dsv41.tensor<[T, 2], f32> -> !dsv41.tensor<[T, 2], f32>
  %mul_5 = torch.aten.mul.Scalar %sigmoid_1, %int2 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2], f32>
  %mul_6 = torch.aten.mul.Tensor %split_with_sizes_2, %split_with_sizes_2_2 : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[1], f32> -> !dsv41.tensor<[T, 4], f32>
  %add_6 = torch.aten.add.Tensor %mul_6, %split_with_sizes_1_2, %int1 : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[4], f32>, !torch.int -> !dsv41.tensor<[T, 4], f32>
  %list_1 = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
  %unflatten = torch.aten.unflatten.int %add_6, %int-1, %list_1 : !dsv41.tensor<[T, 4], f32>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 2], f32>
  %sinkhorn = dsv41.sinkhorn %unflatten {iterations = 2, eps = 1.0e-06} : !dsv41.tensor<[T, 2, 2], f32> -> !dsv41.tensor<[T, 2, 2], f32>
  %unsqueeze_5 = torch.aten.unsqueeze %pre, %int-1 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1], f32>
  %to_7 = torch.aten.to.dtype %to_2, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], f32>
  %mul_7 = torch.aten.mul.Tensor %unsqueeze_5, %to_7 : !dsv41.tensor<[T, 2, 1], f32>, !dsv41.tensor<[T, 2, 32], f32> -> !dsv41.tensor<[T, 2, 32], f32>
  %select_2 = torch.aten.select.int %mul_7, %int1, %int0 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %select_3 = torch.aten.select.int %mul_7, %int1, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %add_7 = torch.aten.add.Tensor %select_2, %select_3, %int1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %unsqueeze_6 = torch.aten.unsqueeze %add_7, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 32], f32>
  %squeeze_1 = torch.aten.squeeze.dim %unsqueeze_6, %int1 : !dsv41.tensor<[T, 1, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %to_8 = torch.aten.to.dtype %squeeze_1, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %to_9 = torch.aten.to.dtype %to_8, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %square_1 = torch.aten.square %to_9 : !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %mean_1 = torch.aten.mean.dim %square_1, %list, %true, %none : !dsv41.tensor<[T, 32], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %add_8 = torch.aten.add.Scalar %mean_1, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt_1 = torch.aten.rsqrt %add_8 : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul_8 = torch.aten.mul.Tensor %to_9, %rsqrt_1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_10 = torch.aten.to.dtype %weight, %int6, %false, %false, %none : !dsv41.tensor<[32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[32], f32>
  %mul_9 = torch.aten.mul.Tensor %to_10, %mul_8 : !dsv41.tensor<[32], f32>, !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_11 = torch.aten.to.dtype %mul_9, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  func.return %to_8, %to_11, %add_4, %mul_5, %sinkhorn : !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 32], bf16>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 2, 2], f32>
}

// CHECK: dsv41.sinkhorn
// CHECK: %rsqrt_1 = torch.aten.rsqrt
// CHECK-NOT: dsv41.mhc
