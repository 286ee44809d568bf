#include "tdock/frame.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/checksum.h"
#include "core/tensor/frame_header.h"

namespace tdock {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are written as they are in memory");

absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Writer {
 public:
  explicit Writer(const FrameLimits& limits) : limits_(limits) {}

  template <class T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  absl::Status Name(absl::string_view what, absl::string_view name) {
    if (std::optional<std::string> fault = FindNameFault(name, limits_)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot write a ", what, " with ", *fault));
    }
    Number(static_cast<uint32_t>(name.size()));
    bytes_.append(name.data(), name.size());
    return absl::OkStatus();
  }

  absl::Status Map(const Meta& map, int depth) {
    Number(uint64_t{map.size()});
    for (const auto& [key, value] : map) {
      TDOCK_RETURN_IF_ERROR(Name("meta key", key));
      if (absl::Status status = Value(value, depth); !status.ok()) {
        return depth == 0 ? Annotate(status, absl::StrCat("meta '", key, "'")) : status;
      }
    }
    return absl::OkStatus();
  }

  std::string& bytes() { return bytes_; }

 private:
  template <class T>
  void Tagged(MetaTag tag, T value) {
    Number(tag);
    Number(value);
  }

  absl::Status Value(const MetaValue& value, int depth) {
    if (const auto* truth = value.As<bool>()) {
      Tagged(MetaTag::kBool, uint64_t{*truth});
    } else if (const auto* integer = value.As<int64_t>()) {
      Tagged(MetaTag::kInt64, *integer);
    } else if (const auto* number = value.As<double>()) {
      Tagged(MetaTag::kDouble, *number);
    } else if (const auto* text = value.As<std::string>()) {
      Tagged(MetaTag::kString, uint64_t{text->size()});
      bytes_.append(*text);
    } else if (depth >= limits_.max_meta_depth) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write lists and maps more than ", limits_.max_meta_depth, " inside one another"));
    } else if (const auto* list = value.As<MetaValue::List>()) {
      Tagged(MetaTag::kList, uint64_t{list->size()});
      for (const MetaValue& item : *list) TDOCK_RETURN_IF_ERROR(Value(item, depth + 1));
    } else {
      Number(MetaTag::kMap);
      return Map(*value.As<Meta>(), depth + 1);
    }
    return absl::OkStatus();
  }

  const FrameLimits& limits_;
  std::string bytes_;
};

struct Block {
  Buffer bytes = {};
  uint64_t checksum = 0;
};

// Nothing of a frame can be sent before the checksums in its header are known, so those of much are made by two
// threads.
void AddChecksums(std::vector<Block>& blocks) {
  constexpr size_t kMuch = 4 << 20;
  size_t total = 0;
  for (const Block& block : blocks) total += block.bytes.size();
  std::atomic<size_t> next{0};
  const auto work = [&blocks, &next] {
    for (size_t i = next++; i < blocks.size(); i = next++) blocks[i].checksum = Checksum(blocks[i].bytes.bytes());
  };
  std::optional<std::jthread> second;
  if (total >= kMuch && blocks.size() > 1 && std::thread::hardware_concurrency() > 1) second.emplace(work);
  work();
}

// The blocks of a column: offsets if it has any, then values.
void AppendBlocks(const Column& column, std::vector<Block>& blocks) {
  const auto append = [&blocks](Buffer bytes) { blocks.push_back({std::move(bytes)}); };
  const auto owner = std::make_shared<const Column>(column);
  if (const std::span<const int64_t> offsets = column.offsets(); !offsets.empty()) {
    Buffer block = Buffer::Wrap(offsets.data(), offsets.size_bytes(), owner);
    if (offsets.front() != 0) {
      block = Buffer::Allocate(offsets.size_bytes());
      auto* const rebased = reinterpret_cast<int64_t*>(block.mutable_data());
      std::transform(offsets.begin(), offsets.end(), rebased, [&](int64_t offset) { return offset - offsets.front(); });
    }
    append(std::move(block));
  }
  const auto payload = column.PayloadBytes();
  append(Buffer::Wrap(payload.data(), payload.size(), owner));
}

// The header of a frame whose first block is at `at`.
absl::StatusOr<std::string> MakeHeader(const MetaBatch& batch, const std::vector<Block>& blocks, uint64_t at,
                                       const FrameLimits& limits, FrameChecksums checksums) {
  Writer writer(limits);
  writer.bytes().append(kFrameMagic.data(), kFrameMagic.size());
  writer.Number(checksums == FrameChecksums::kBlocks ? kCheckedFrameVersion : kUncheckedFrameVersion);
  writer.Number(static_cast<uint32_t>(batch.columns().columns().size()));
  writer.Number(batch.rows());
  writer.bytes().append(2 * sizeof(uint64_t), '\0');
  auto block = blocks.begin();
  for (const auto& [name, column] : batch.columns().columns()) {
    TDOCK_RETURN_IF_ERROR(writer.Name("column", name));
    const ColumnType& type = column.type();
    writer.Number(type.kind);
    writer.Number(type.dtype);
    writer.Number(static_cast<uint16_t>(type.row_shape.size()));
    for (int64_t size : type.row_shape) writer.Number(size);
    for (int count = type.kind == ColumnKind::kDense ? 1 : 2; count > 0; --count, ++block) {
      writer.Number(at);
      writer.Number(uint64_t{block->bytes.size()});
      writer.Number(block->checksum);
      at += RoundUpToBlock(block->bytes.size());
    }
  }
  TDOCK_RETURN_IF_ERROR(writer.Map(batch.meta(), 0));
  std::string& header = writer.bytes();
  const uint64_t sizes[] = {header.size() + kFrameChecksumBytes, at};
  std::memcpy(header.data() + kFramePreludeBytes - sizeof(sizes), sizes, sizeof(sizes));
  writer.Number(Checksum(std::as_bytes(std::span(header))));
  return std::move(header);
}

}  // namespace

std::vector<absl::string_view> EncodedFrame::Pieces() const {
  static constexpr char kZeros[kAlignment] = {};
  std::vector<absl::string_view> pieces = {header};
  for (const Buffer& block : blocks) {
    pieces.push_back(AsText(block.bytes()));
    pieces.push_back(absl::string_view(kZeros, RoundUpToBlock(block.size()) - block.size()));
  }
  return pieces;
}

absl::StatusOr<EncodedFrame> EncodeFrame(const MetaBatch& batch, const FrameLimits& limits, FrameChecksums checksums) {
  const size_t columns = batch.columns().columns().size();
  if (columns > limits.max_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", columns, " columns; the limit is ", limits.max_columns));
  }
  if (batch.rows() > limits.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", batch.rows(), " rows; the limit is ", limits.max_rows));
  }
  std::vector<Block> blocks;
  for (const auto& [name, column] : batch.columns().columns()) {
    if (column.type().dtype == DType::kBool) {
      const absl::Status status = CheckTruths(column.PayloadBytes());
      if (!status.ok()) return Annotate(status, absl::StrCat("column '", EscapeForMessage(name), "'"));
    }
    AppendBlocks(column, blocks);
  }
  if (checksums == FrameChecksums::kBlocks) AddChecksums(blocks);
  // Where the blocks begin does not change the size of the header.
  TDOCK_ASSIGN_OR_RETURN(const std::string draft, MakeHeader(batch, blocks, 0, limits, checksums));
  if (draft.size() > limits.max_header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write a header of ", draft.size(), " bytes; the limit is ", limits.max_header_bytes));
  }
  uint64_t frame_bytes = RoundUpToBlock(draft.size());
  for (const Block& block : blocks) frame_bytes += RoundUpToBlock(block.bytes.size());
  if (frame_bytes > limits.max_frame_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write a frame of ", frame_bytes, " bytes; the limit is ", limits.max_frame_bytes));
  }
  EncodedFrame frame;
  TDOCK_ASSIGN_OR_RETURN(frame.header, MakeHeader(batch, blocks, RoundUpToBlock(draft.size()), limits, checksums));
  frame.header.resize(RoundUpToBlock(draft.size()), '\0');
  for (Block& block : blocks) frame.blocks.push_back(std::move(block.bytes));
  return frame;
}

absl::StatusOr<MetaBatch> DecodeFrame(const Buffer& frame, const FrameLimits& limits) {
  TDOCK_RETURN_IF_ERROR(CheckFrameStart(frame.bytes()));
  if (reinterpret_cast<uintptr_t>(frame.data()) % alignof(int64_t) != 0) {
    return absl::InvalidArgumentError("the memory of a frame must begin at a multiple of 8 bytes");
  }
  if (frame.size() < kFramePreludeBytes) return FrameTooShort(frame.size());
  TDOCK_ASSIGN_OR_RETURN(const FramePrelude prelude, ReadFramePrelude(frame.bytes(), limits));
  if (prelude.frame_bytes != frame.size()) return WrongFrameSize(prelude.frame_bytes, frame.size());
  TDOCK_ASSIGN_OR_RETURN(FrameHeader header,
                         ReadFrameHeader(frame.bytes().first(prelude.header_bytes), prelude, limits));

  std::vector<Buffer> blocks;
  uint64_t at = prelude.header_bytes;
  const FrameBlock* before = nullptr;
  for (const FrameBlock& block : header.blocks) {
    TDOCK_RETURN_IF_ERROR(header.CheckZeros(frame.bytes().subspan(at, block.begin - at), at, before));
    blocks.push_back(frame.Slice(block.begin, block.bytes));
    if (prelude.checked()) TDOCK_RETURN_IF_ERROR(header.CheckBlock(block, Checksum(blocks.back().bytes())));
    at = block.end();
    before = &block;
  }
  TDOCK_RETURN_IF_ERROR(header.CheckZeros(frame.bytes().subspan(at), at, before));
  return std::move(header).MakeBatch(std::move(blocks));
}

absl::Status SaveBatch(Env& env, const std::string& path, const MetaBatch& batch, const FrameLimits& limits) {
  absl::StatusOr<EncodedFrame> frame = EncodeFrame(batch, limits);
  if (!frame.ok()) return Annotate(frame.status(), path);
  return WriteFileAtomically(env, path, frame->Pieces());
}

absl::StatusOr<MetaBatch> LoadBatch(Env& env, const std::string& path, const FrameLimits& limits) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, env.MapFile(path));
  const std::shared_ptr<const MappedFile> file = std::move(mapped);
  // What was on a disk is not trusted without its checksums.
  FrameLimits checked = limits;
  checked.allow_unchecked = false;
  absl::StatusOr<MetaBatch> batch =
      DecodeFrame(Buffer::Wrap(file->bytes().data(), file->bytes().size(), file), checked);
  return batch.ok() ? std::move(batch) : Annotate(batch.status(), path);
}

}  // namespace tdock
