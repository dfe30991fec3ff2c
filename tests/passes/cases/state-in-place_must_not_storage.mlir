// RUN: state-in-place
// ERROR: reader: %wide = torch.aten.mul.Scalar %view
// The storage of a cache is the buffer that the store writes, and a view of it is no copy.

func.func @f(%window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[S, 528], si32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int3 = torch.constant.int 3
  %false = torch.constant.bool false
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int-1 = torch.constant.int -1
  %buffer = dsv41.storage %window : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>> -> !dsv41.tensor<[S, 528], ui8>
  %view = torch.aten.unsqueeze %buffer, %int0 : !dsv41.tensor<[S, 528], ui8>, !torch.int -> !dsv41.tensor<[1, S, 528], ui8>
  %first = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
  %wide = torch.aten.mul.Scalar %view, %int3 : !dsv41.tensor<[1, S, 528], ui8>, !torch.int -> !dsv41.tensor<[1, S, 528], ui8>
  %back = torch.aten.to.dtype %wide, %int3, %false, %false, %none : !dsv41.tensor<[1, S, 528], ui8>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[1, S, 528], si32>
  %late = torch.aten.squeeze.dim %back, %int0 : !dsv41.tensor<[1, S, 528], si32>, !torch.int -> !dsv41.tensor<[S, 528], si32>
  func.return %first, %late : !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[S, 528], si32>
}
