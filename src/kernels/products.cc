#include "kernels/products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/loops.h"
#include "kernels/panels.h"
#include "kernels/parallel.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

// So many rows at most are multiplied with one panel before the next, so that they stay in a core's cache.
constexpr int64_t kMostRows = 480;
// Multiplications, and numbers to pack, that are worth a thread's while.
constexpr int64_t kWorthMultiplying = 1 << 17, kWorthPacking = 1 << 15;

template <class T>
struct Problem {
  const T* x;            // [rows, inputs], or, if x_stride is not 0, columns of a matrix [inputs, x_stride]
  int64_t x_stride = 0;  // of float32 only
  const T* bias;         // or null
  T* y;
  int64_t rows, inputs, outputs;
  PackedFormat format;

  int64_t panels() const { return DividedUp(outputs, kPanelOutputs); }
};

// The rows of x in tiles, in blocks that are multiplied one after another.
template <class T>
class PackedRows {
 public:
  PackedRows(const Problem<T>& problem, const Loops& loops)
      : problem_(problem),
        loops_(loops),
        words_(WordsOf(problem.format, loops)),
        width_(WordCount(words_, problem.inputs)),
        blocks_(problem.rows, kMostRows),
        packed_(at::empty({problem.rows * width_}, at::kFloat)) {
    const int64_t tiles_of_block = DividedUp(blocks_.size(blocks_.count - 1), loops.tile_rows);
    ParallelFor(blocks_.count * tiles_of_block, DividedUp(kWorthPacking, loops.tile_rows * width_),
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) PackTile(i / tiles_of_block, i % tiles_of_block);
                });
  }

  int64_t blocks() const { return blocks_.count; }

  // Multiplies a block with `count` panels from `first` on.
  void Multiply(int64_t block, int64_t first, int64_t count, const std::byte* panels) const {
    const int64_t row = blocks_.begin(block), output = first * kPanelOutputs;
    const TypedLoops<T>& loops = loops_.of<T>();
    const auto multiply = problem_.format == PackedFormat::kInt8 ? loops.multiply_int8 : loops.multiply;
    multiply({.x = packed_.const_data_ptr<float>() + row * width_,
              .words = words_,
              .rows = blocks_.size(block),
              .inputs = problem_.inputs,
              .format = problem_.format,
              .panels = panels,
              .bias = problem_.bias != nullptr ? problem_.bias + output : nullptr,
              .outputs = std::min(problem_.outputs - output, count * kPanelOutputs),
              .y = problem_.y + row * problem_.outputs + output,
              .y_stride = problem_.outputs});
  }

 private:
  static RowWords WordsOf(PackedFormat format, const Loops& loops) {
    if (format == PackedFormat::kInt8) return RowWords::kFours;
    const bool is_bfloat16 = format == PackedFormat::kBFloat16 && !std::is_same_v<T, float>;
    return is_bfloat16 && loops.multiplies_pairs ? RowWords::kPairs : RowWords::kNumbers;
  }

  void PackTile(int64_t block, int64_t tile) {
    const RowTiles tiles(blocks_.size(block), loops_.tile_rows);
    if (tile >= tiles.count) return;  // of a block that is a row smaller than the last one
    const int64_t row = blocks_.begin(block) + tiles.begin(tile);
    if constexpr (std::is_same_v<T, float>) {
      if (problem_.x_stride > 0) return CopyTile(row, tiles.size(tile));
    }
    loops_.of<T>().pack_tile(problem_.x + row * problem_.inputs, tiles.size(tile), problem_.inputs, words_,
                             packed_.mutable_data_ptr<float>() + row * width_);
  }

  // The tile of the rows from `row` on, of columns.
  void CopyTile(int64_t row, int64_t count) {
    float* const tile = packed_.mutable_data_ptr<float>() + row * width_;
    for (int64_t i = 0; i < problem_.inputs; ++i) {
      const float* const from = problem_.x + i * problem_.x_stride + row;
      // A copy of known size is faster. What it writes behind its part is overwritten by the next.
      const int64_t left = problem_.inputs - i;
      if (left * count >= kLanes && (left - 1) * problem_.x_stride + problem_.rows - row >= kLanes) {
        std::memcpy(tile + i * count, from, kLanes * sizeof(float));
      } else {
        std::memcpy(tile + i * count, from, static_cast<size_t>(count) * sizeof(float));
      }
    }
  }

  const Problem<T>& problem_;
  const Loops& loops_;
  const RowWords words_;
  const int64_t width_;  // of a packed row
  const RowTiles blocks_;
  const at::Tensor packed_;
};

template <class T>
void Multiply(const Problem<T>& problem, const PackedMatrix& weight) {
  const PackedRows<T> rows(problem, LoopsInUse());
  const int64_t panels = problem.panels(), bytes = PanelBytes(problem.format, problem.inputs);
  // Few rows are multiplied with several panels at once.
  const int64_t together = problem.rows <= 3 ? 4 : 1;
  const int64_t groups = DividedUp(panels, together);
  const int64_t work =
      DividedUp(problem.rows, rows.blocks()) * together * kPanelOutputs * problem.inputs;  // of a group
  ParallelFor(rows.blocks() * groups, std::max<int64_t>(kWorthMultiplying / std::max<int64_t>(work, 1), 1),
              [&](int64_t begin, int64_t end) {
                while (begin < end) {
                  const int64_t block = begin / groups, group = begin % groups;
                  const int64_t count = std::min(groups - group, end - begin), first = group * together;
                  rows.Multiply(block, first, std::min(panels - first, count * together),
                                weight.panels() + first * bytes);
                  begin += count;
                }
              });
}

// Packs the panels as it comes to them: pack_panel(first output, number of outputs, to). Rows are packed in parts, so
// that their copies stay small.
template <class T, class PackPanel>
void MultiplyPacking(const Problem<T>& whole, PackPanel&& pack_panel) {
  constexpr int64_t kMaxPacked = int64_t{4} << 20;  // numbers
  constexpr int64_t kCached = int64_t{512} << 10;   // bytes of panels, while all rows are multiplied with them
  const int64_t rows_at_once = std::max<int64_t>(kMaxPacked / whole.inputs / kMostRows, 1) * kMostRows;
  for (int64_t begin = 0; begin < whole.rows; begin += rows_at_once) {
    Problem<T> problem = whole;
    problem.rows = std::min(whole.rows - begin, rows_at_once);
    problem.x += whole.x_stride > 0 ? begin : begin * whole.inputs;
    problem.y += begin * whole.outputs;
    const PackedRows<T> rows(problem, LoopsInUse());
    const int64_t bytes = PanelBytes(problem.format, problem.inputs);
    const int64_t together = std::max<int64_t>(kCached / bytes, 1);
    const int64_t work = problem.rows * kPanelOutputs * problem.inputs;  // of a panel
    ParallelFor(problem.panels(), std::max<int64_t>(kWorthMultiplying / work, 1), [&](int64_t first, int64_t end) {
      const at::Tensor scratch = at::empty({std::min(end - first, together) * bytes}, at::kByte);
      auto* const panels = reinterpret_cast<std::byte*>(scratch.mutable_data_ptr<uint8_t>());
      for (; first < end; first += together) {
        const int64_t count = std::min(end - first, together);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t output = (first + i) * kPanelOutputs;
          pack_panel(output, std::min(problem.outputs - output, kPanelOutputs), panels + i * bytes);
        }
        for (int64_t block = 0; block < rows.blocks(); ++block) rows.Multiply(block, first, count, panels);
      }
    });
  }
}

template <class T, class W>
void Multiply(const Problem<T>& problem, const W* weight) {
  MultiplyPacking(problem, [&](int64_t output, int64_t count, std::byte* panel) {
    LoopsInUse().of<W>().pack_panel(weight + output * problem.inputs, count, problem.inputs, problem.format, panel);
  });
}

// The same for a transposed weight, [inputs, outputs].
void MultiplyTransposed(const Problem<float>& problem, const float* weight) {
  MultiplyPacking(problem, [&](int64_t output, int64_t count, std::byte* panel) {
    auto* to = reinterpret_cast<float*>(panel);
    const float* from = weight + output;
    for (int64_t i = 0; i < problem.inputs; ++i, to += kPanelOutputs, from += problem.outputs) {
      if (count == kPanelOutputs) {
        std::memcpy(to, from, kPanelOutputs * sizeof(float));
      } else {
        std::copy(from, from + count, to);
        std::fill(to + count, to + kPanelOutputs, 0.0F);
      }
    }
  });
}

// Calls multiply(problem) for the problem that x, bias and the result make with a weight [outputs, inputs].
template <class Multiply>
at::Tensor Multiplied(const at::Tensor& x, int64_t outputs, int64_t inputs, const at::Tensor& bias, PackedFormat format,
                      Multiply&& multiply) {
  CheckKernelTensor(x, "products");
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == inputs && inputs > 0, "a weight of [", outputs, ", ", inputs,
              "] does not fit ", x.scalar_type(), " ", x.sizes());
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == outputs && bias.is_cpu() &&
                                  bias.scalar_type() == x.scalar_type()),
              "a bias does not fit a weight of [", outputs, ", ", inputs, "] and ", x.scalar_type());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = outputs;
  at::Tensor y = at::empty(shape, x.options());
  if (y.numel() == 0) return y;
  const at::Tensor rows = x.contiguous(), biases = bias.defined() ? bias.contiguous() : bias;
  WithTypeOf(x, [&](auto type) {
    using T = decltype(type);
    multiply(Problem<T>{.x = rows.const_data_ptr<T>(),
                        .bias = biases.defined() ? biases.const_data_ptr<T>() : nullptr,
                        .y = y.mutable_data_ptr<T>(),
                        .rows = y.numel() / outputs,
                        .inputs = inputs,
                        .outputs = outputs,
                        .format = format});
  });
  return y;
}

}  // namespace

at::Tensor Product(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias) {
  return Multiplied(x, weight.outputs(), weight.inputs(), bias, weight.format(),
                    [&](const auto& problem) { Multiply(problem, weight); });
}

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  CheckKernelTensor(weight, "weights");
  TORCH_CHECK(weight.dim() == 2, "a weight is [outputs, inputs], not ", weight.sizes());
  const at::Tensor weights = weight.contiguous();
  const PackedFormat format = x.scalar_type() == at::kFloat ? PackedFormat::kFloat : PackedFormat::kBFloat16;
  return Multiplied(x, weight.size(0), weight.size(1), bias, format, [&](const auto& problem) {
    WithTypeOf(weights, [&](auto type) { Multiply(problem, weights.const_data_ptr<decltype(type)>()); });
  });
}

at::Tensor Multiply(const at::Tensor& a, const at::Tensor& b) {
  for (const at::Tensor& factor : {a, b}) {
    CheckKernelTensor(factor, "products");
    TORCH_CHECK(factor.dim() == 2 && factor.scalar_type() == at::kFloat, "factors are matrices in float32, not ",
                factor.scalar_type(), " ", factor.sizes());
  }
  const int64_t rows = a.size(0), inputs = a.size(1), outputs = b.size(1);
  TORCH_CHECK(inputs == b.size(0), a.sizes(), " does not fit ", b.sizes());
  const auto is_transposed = [](const at::Tensor& factor) {
    return !factor.is_contiguous() && factor.t().is_contiguous();
  };
  const bool of_a = is_transposed(a), of_b = is_transposed(b);
  const at::Tensor x = of_a ? a : a.contiguous(), weight = of_b ? b : b.contiguous();
  at::Tensor y = at::empty({rows, outputs}, a.options());
  if (y.numel() == 0 || inputs == 0) return y.zero_();
  const Problem<float> problem{.x = x.const_data_ptr<float>(),
                               .x_stride = of_a ? rows : 0,
                               .bias = nullptr,
                               .y = y.mutable_data_ptr<float>(),
                               .rows = rows,
                               .inputs = inputs,
                               .outputs = outputs,
                               .format = PackedFormat::kFloat};
  of_b ? Multiply(problem, weight.const_data_ptr<float>())
       : MultiplyTransposed(problem, weight.const_data_ptr<float>());
  return y;
}

bool MultipliesBFloat16Fast() { return LoopsInUse().multiplies_pairs; }

bool MultipliesFloatFast() { return LoopsInUse().vector_bits == 512 && HasWideMultipliersOfAmd(); }

bool HasFastBFloat16() { return LoopsInUse().vector_bits > 0; }

}  // namespace tdock::kernels
