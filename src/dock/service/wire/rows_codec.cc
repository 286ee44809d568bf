#include "dock/service/wire/rows_codec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/table/rows_data.h"

namespace tdock::service {
namespace {

// The address of a cell without bytes: such a cell exists, so it must not be null.
const std::byte kNoBytes{};
// The alignment of runs in a message: that of blocks.
constexpr size_t kInlineAlignment = Buffer::kAlignment;

absl::Status Unfit(absl::string_view what, size_t given, size_t wanted) {
  return absl::InvalidArgumentError(absl::StrCat("rows with ", given, " ", what, " instead of ", wanted));
}

// InvalidArgument unless the runs are exactly the cells of all rows and columns. Returns how many cells exist.
absl::StatusOr<uint64_t> CountPresent(const message::Rows& message) {
  const uint64_t total = uint64_t{message.ids.size()} * message.columns.size();
  uint64_t told = 0, present = 0;
  for (const message::CellRun& run : message.cells) {
    if (run.count > total - told) return absl::InvalidArgumentError("rows with more cells than they have columns for");
    told += run.count;
    if (!run.absent) present += run.count;
  }
  if (told != total) return Unfit("cells", told, total);
  return present;
}

void EncodeLabels(const Rows& rows, message::Rows& message) {
  const size_t count = rows.size();
  bool any_keys = false, any_tags = false;
  for (size_t i = 0; i < count; ++i) {
    any_keys = any_keys || !rows.key(i).empty();
    any_tags = any_tags || !rows.tags(i).empty();
  }
  if (any_keys) message.keys.reserve(count);
  for (size_t i = 0; any_keys && i < count; ++i) message.keys.emplace_back(rows.key(i));
  if (!any_tags) return;
  message.tags.reserve(count);
  std::map<Tags, uint32_t> numbers;
  for (size_t i = 0; i < count; ++i) {
    const Tags& tags = rows.tags(i);
    if (tags.empty()) {
      message.tags.push_back(0);
      continue;
    }
    const auto [entry, is_new] = numbers.try_emplace(tags, static_cast<uint32_t>(numbers.size()) + 1);
    if (is_new) message.tag_sets.push_back(EncodeTags(tags));
    message.tags.push_back(entry->second);
  }
}

void EncodeCells(const Rows& rows, std::vector<message::CellRun>& runs) {
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    for (size_t row = 0; row < rows.size(); ++row) {
      const Cell& cell = rows.cell(row, column);
      const bool absent = cell.bytes.data() == nullptr;
      if (runs.empty() || runs.back().absent != absent || runs.back().partial != cell.partial ||
          runs.back().weights_version != cell.weights_version) {
        runs.push_back({.weights_version = cell.weights_version, .partial = cell.partial, .absent = absent});
      }
      ++runs.back().count;
    }
  }
}

void AddToRun(uint64_t cell_bytes, message::ViewRun& run) {
  const bool is_first = run.count == 0 && run.each_bytes.empty();
  if (is_first) run.cell_bytes = cell_bytes;
  if (run.each_bytes.empty() && cell_bytes == run.cell_bytes) {
    ++run.count;
    return;
  }
  if (run.each_bytes.empty()) {
    run.each_bytes.resize(run.count, run.cell_bytes);
    run.count = run.cell_bytes = 0;
  }
  run.each_bytes.push_back(cell_bytes);
}

// Collects bytes that are sent one after another.
class CellStream {
 public:
  uint64_t bytes() const { return bytes_; }
  // Adds zeros up to where a column may begin, and returns that place.
  uint64_t Align() {
    static constexpr std::byte kZeros[kInlineAlignment] = {};
    const uint64_t rest = bytes_ % kInlineAlignment;
    if (rest > 0) Add(std::span(kZeros).first(kInlineAlignment - rest));
    return bytes_;
  }
  void Add(std::span<const std::byte> cell) {
    bytes_ += cell.size();
    if (!run_.empty() && run_.data() + run_.size() == cell.data()) {
      run_ = {run_.data(), run_.size() + cell.size()};
      return;
    }
    EndRun();
    run_ = cell;
  }
  StreamedCells Finish() && {
    EndRun();
    StreamedCells cells;
    const auto copies = std::make_shared<const std::string>(std::move(copies_));
    size_t at = 0;
    for (const Part& part : parts_) {
      const auto* const copy = reinterpret_cast<const std::byte*>(copies->data()) + at;
      cells.pieces.emplace_back(part.in_place == nullptr ? copy : part.in_place, part.bytes);
      if (part.in_place == nullptr) at += part.bytes;
    }
    cells.copies = copies;
    return cells;
  }

 private:
  // Shorter runs are copied together.
  static constexpr size_t kShort = 512;
  struct Part {
    const std::byte* in_place;  // null: the next of the copies
    size_t bytes;
  };

  void EndRun() {
    const auto run = std::exchange(run_, {});
    if (run.empty()) return;
    if (run.size() >= kShort) return parts_.push_back({run.data(), run.size()});
    copies_.append(reinterpret_cast<const char*>(run.data()), run.size());
    if (parts_.empty() || parts_.back().in_place != nullptr) parts_.push_back({nullptr, 0});
    parts_.back().bytes += run.size();
  }

  uint64_t bytes_ = 0;
  std::span<const std::byte> run_;  // of adjacent cells
  std::string copies_;
  std::vector<Part> parts_;
};

// The bytes of cells that are in no segment.
class InlineCells {
 public:
  explicit InlineCells(std::string& bytes) : bytes_(bytes) {}

  // Begins a run with this cell. True if an earlier run begins with it, too: then both share its bytes, so that a row
  // that is named many times costs its bytes once.
  bool Begin(std::span<const std::byte> cell, message::ViewRun& run) {
    const size_t end = (bytes_.size() + kInlineAlignment - 1) / kInlineAlignment * kInlineAlignment;
    const auto [first, is_new] = first_cells_.try_emplace(std::pair(cell.data(), cell.size()), end);
    run.is_inline = true;
    run.offset = first->second;
    if (is_new) bytes_.resize(end);
    return !is_new;
  }
  absl::Status Append(std::span<const std::byte> cell) {
    if (bytes_.size() > kMaxInlineBytes || cell.size() > kMaxInlineBytes - bytes_.size()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "an answer carries at most ", kMaxInlineBytes, " bytes of cells that lie in no segment; it has ",
          bytes_.size(), " of them, and the next cell has ", cell.size(), ": ask for fewer rows in one call"));
    }
    bytes_.append(reinterpret_cast<const char*>(cell.data()), cell.size());
    return absl::OkStatus();
  }

 private:
  std::string& bytes_;
  // The first cells of runs, and where they are.
  absl::flat_hash_map<std::pair<const std::byte*, size_t>, uint64_t> first_cells_;
};

// The views of one column's cells.
class ColumnViews {
 public:
  ColumnViews(const Locate& locate, InlineCells& inline_cells, std::vector<message::ViewRun>& runs)
      : locate_(locate), inline_cells_(inline_cells), runs_(runs) {}

  // A cell without bytes continues any run.
  absl::Status Add(std::span<const std::byte> cell) {
    const bool continues = begun_ && (cell.empty() || (cell.data() == end_ && cell.size() <= left_));
    bool copied = false;
    if (continues) {
      AddToRun(cell.size(), runs_.back());
    } else {
      copied = Begin(cell);
    }
    if (cell.empty()) return absl::OkStatus();
    left_ -= cell.size();
    end_ = cell.data() + cell.size();
    return runs_.back().is_inline && !copied ? inline_cells_.Append(cell) : absl::OkStatus();
  }

 private:
  // A run of one cell. True if its bytes are in the message already.
  bool Begin(std::span<const std::byte> cell) {
    begun_ = true;
    message::ViewRun& run = runs_.emplace_back();
    run.cell_bytes = cell.size();
    run.count = 1;
    left_ = 0;
    end_ = nullptr;
    // A cell without bytes may be located after the last byte of its memory.
    if (cell.empty()) return false;
    if (const std::optional<SharedPlace> place = locate_(cell.data()); place.has_value()) {
      run.segment = place->segment;
      run.offset = place->offset;
      left_ = place->bytes;
      return false;
    }
    const bool copied = inline_cells_.Begin(cell, run);
    left_ = copied ? cell.size() : kMaxInlineBytes + cell.size();
    return copied;
  }
  const Locate& locate_;
  InlineCells& inline_cells_;
  std::vector<message::ViewRun>& runs_;
  bool begun_ = false;  // the last run is this column's
  // Behind the last cell with bytes; and how many bytes may follow there within the run's segment: another may be
  // mapped right after it.
  const std::byte* end_ = nullptr;
  uint64_t left_ = 0;
};

absl::Status CheckLists(const message::Rows& message) {
  const size_t rows = message.ids.size();
  const auto fits = [&](absl::string_view what, size_t size) {
    return size == 0 || size == rows ? absl::OkStatus() : Unfit(what, size, rows);
  };
  TDOCK_RETURN_IF_ERROR(fits("groups", message.groups.size()));
  TDOCK_RETURN_IF_ERROR(fits("redeliveries", message.redeliveries.size()));
  TDOCK_RETURN_IF_ERROR(fits("keys", message.keys.size()));
  TDOCK_RETURN_IF_ERROR(fits("tags", message.tags.size()));
  TDOCK_RETURN_IF_ERROR(fits("ages", message.ages.size()));
  return fits("epochs", message.epochs.size());
}

absl::Status DecodeTagSets(const message::Rows& message, Rows::Data& data) {
  std::vector<std::shared_ptr<const Tags>> sets = {nullptr};
  for (const std::string& tags : message.tag_sets) {
    TDOCK_ASSIGN_OR_RETURN(Tags decoded, DecodeTags(tags));
    sets.push_back(std::make_shared<const Tags>(std::move(decoded)));
  }
  for (uint32_t number : message.tags) {
    if (number >= sets.size()) return absl::InvalidArgumentError(absl::StrCat("there is no set of tags ", number));
    data.tags.push_back(sets[number]);
  }
  return absl::OkStatus();
}

absl::Status DecodePieces(const message::Rows& message, Rows::Data& data) {
  for (const message::CellPieces& pieces : message.pieces) {
    if (pieces.cell >= data.cells.size() || pieces.ends.size() != pieces.weights_versions.size()) {
      return absl::InvalidArgumentError(absl::StrCat("pieces of cell ", pieces.cell, " that do not fit"));
    }
    std::vector<Piece>& decoded = data.pieces[pieces.cell];
    for (size_t i = 0; i < pieces.ends.size(); ++i) decoded.push_back({pieces.ends[i], pieces.weights_versions[i]});
  }
  return absl::OkStatus();
}

// Whether a cell of this type can have this size.
bool Fits(const ColumnType& type, int64_t item_bytes, size_t bytes) {
  const auto item = static_cast<size_t>(item_bytes);
  if (type.kind == ColumnKind::kDense) return bytes == item;
  return item == 0 ? bytes == 0 : bytes % item == 0;
}

}  // namespace

message::Rows Encode(const Rows& rows) {
  const size_t count = rows.size();
  message::Rows message;
  message.ids.assign(rows.ids().begin(), rows.ids().end());
  if (std::any_of(rows.groups().begin(), rows.groups().end(), [](GroupId group) { return group != kNoGroup; })) {
    message.groups.assign(rows.groups().begin(), rows.groups().end());
  }
  bool redelivered = false, aged = false, sent_back = false;
  for (size_t i = 0; i < count; ++i) {
    redelivered = redelivered || rows.redeliveries(i) != 0;
    aged = aged || rows.age(i) != 0;
    sent_back = sent_back || rows.epoch(i) != 0;
  }
  for (size_t i = 0; redelivered && i < count; ++i) message.redeliveries.push_back(rows.redeliveries(i));
  for (size_t i = 0; aged && i < count; ++i) message.ages.push_back(rows.age(i));
  for (size_t i = 0; sent_back && i < count; ++i) message.epochs.push_back(rows.epoch(i));
  EncodeLabels(rows, message);
  message.columns.reserve(rows.columns().size());
  for (const ColumnSpec& column : rows.columns()) message.columns.push_back(Encode(column));
  EncodeCells(rows, message.cells);
  for (const auto& [cell, pieces] : Rows::Data::Of(rows).pieces) {
    message::CellPieces& added = message.pieces.emplace_back();
    added.cell = cell;
    for (const Piece& piece : pieces) {
      added.ends.push_back(piece.end);
      added.weights_versions.push_back(piece.weights_version);
    }
  }
  return message;
}

absl::StatusOr<StreamedCells> EncodeStreamed(const Rows& rows, message::Rows& message, uint64_t max_bytes) {
  CellStream stream;
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    message::ViewRun run{.offset = stream.Align(), .is_inline = true};
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::span<const std::byte> bytes = rows.cell(row, column).bytes;
      if (bytes.data() == nullptr) continue;
      AddToRun(bytes.size(), run);
      if (bytes.size() > max_bytes || stream.bytes() > max_bytes - bytes.size()) {
        return absl::ResourceExhaustedError(absl::StrCat("the rows have more than ", max_bytes,
                                                         " bytes together, the limit: ask for fewer rows in one call"));
      }
      stream.Add(bytes);
    }
    if (run.count > 0 || !run.each_bytes.empty()) message.views.push_back(std::move(run));
  }
  message.streamed_bytes = stream.bytes();
  return std::move(stream).Finish();
}

absl::Status EncodeViews(const Rows& rows, const Locate& locate, message::Rows* message, size_t max_runs) {
  InlineCells inline_cells(message->inline_bytes);
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    ColumnViews views(locate, inline_cells, message->views);
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::span<const std::byte> bytes = rows.cell(row, column).bytes;
      if (bytes.data() == nullptr) continue;
      TDOCK_RETURN_IF_ERROR(views.Add(bytes));
      if (message->views.size() > max_runs) {
        return absl::OutOfRangeError(
            absl::StrCat("the cells lie in more than ", max_runs, " runs: ask for fewer rows in one call"));
      }
    }
  }
  return absl::OkStatus();
}

Rows Gathered(const Rows& rows, Memory& memory) {
  Rows::Data data = Rows::Data::Of(rows);
  data.pins.clear();
  const size_t count = rows.size();
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    const std::span<Cell> cells = std::span(data.cells).subspan(column * count, count);
    size_t total = 0;
    for (const Cell& cell : cells) total += cell.bytes.size();
    Buffer values = memory.Allocate(total);
    std::byte* end = values.mutable_data();
    for (Cell& cell : cells) {
      if (cell.bytes.data() == nullptr) continue;
      if (cell.bytes.empty()) {
        cell.bytes = std::span(&kNoBytes, 0);
        continue;
      }
      std::byte* const begin = end;
      end = std::copy(cell.bytes.begin(), cell.bytes.end(), begin);
      cell.bytes = {begin, end};
    }
    data.pins.push_back(values.owner());
  }
  return std::move(data).ToRows();
}

absl::StatusOr<CellBytes> CellsIn(const message::Rows& message, const Look& look, const Buffer& streamed) {
  // There cannot be more, so a peer cannot make this allocate for data that it does not send.
  const uint64_t most = uint64_t{message.ids.size()} * message.columns.size();
  CellBytes bytes;
  Buffer inline_bytes = streamed;
  if (!message.inline_bytes.empty()) {
    inline_bytes = Buffer::CopyOf(std::as_bytes(std::span(message.inline_bytes)));
    bytes.pins.push_back(inline_bytes.owner());
  }
  for (const message::ViewRun& run : message.views) {
    const bool varies = !run.each_bytes.empty();
    const uint64_t count = varies ? run.each_bytes.size() : run.count;
    if (count > most - bytes.cells.size()) return absl::InvalidArgumentError("rows with more views than cells");
    uint64_t total = 0;
    bool overflow = false;
    if (varies) {
      for (uint64_t each : run.each_bytes) overflow |= __builtin_add_overflow(total, each, &total);
    } else {
      overflow = __builtin_mul_overflow(count, run.cell_bytes, &total);
    }
    if (overflow) return absl::InvalidArgumentError("a view of more bytes than can be counted");
    const std::byte* at = &kNoBytes;
    if (total > 0 && run.is_inline) {
      if (run.offset > inline_bytes.size() || total > inline_bytes.size() - run.offset) {
        return absl::InvalidArgumentError(absl::StrCat(total, " bytes at ", run.offset, " of a message with ",
                                                       inline_bytes.size(), " bytes of cells"));
      }
      at = inline_bytes.data() + run.offset;
    } else if (total > 0) {
      TDOCK_ASSIGN_OR_RETURN(at, look(run.segment, run.offset, total));
    }
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t size = varies ? run.each_bytes[i] : run.cell_bytes;
      bytes.cells.emplace_back(at, size);
      at += size;
    }
  }
  return bytes;
}

absl::StatusOr<Rows> Decode(message::Rows message, CellBytes bytes) {
  TDOCK_RETURN_IF_ERROR(CheckLists(message));
  TDOCK_ASSIGN_OR_RETURN(const uint64_t present, CountPresent(message));
  if (present != bytes.cells.size()) return Unfit("bytes of cells", bytes.cells.size(), present);
  Rows::Data data{.ids = std::move(message.ids), .groups = std::move(message.groups)};
  if (data.groups.empty()) data.groups.resize(data.ids.size(), kNoGroup);
  data.redeliveries = std::move(message.redeliveries);
  data.keys = std::move(message.keys);
  data.ages = std::move(message.ages);
  data.epochs = std::move(message.epochs);
  TDOCK_RETURN_IF_ERROR(DecodeTagSets(message, data));

  auto columns = std::make_shared<std::vector<ColumnSpec>>();
  std::vector<int64_t> items;
  for (const std::string& column : message.columns) {
    TDOCK_ASSIGN_OR_RETURN(ColumnSpec spec, Decode<ColumnSpec>(column));
    TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(spec.type));
    items.push_back(item);
    columns->push_back(std::move(spec));
  }

  data.cells.reserve(data.ids.size() * columns->size());
  auto next = bytes.cells.begin();
  for (const message::CellRun& run : message.cells) {
    for (uint64_t i = 0; i < run.count; ++i) {
      const size_t column = data.cells.size() / data.ids.size();
      const std::span<const std::byte> cell = run.absent ? std::span<const std::byte>() : *next++;
      if (!run.absent && !Fits((*columns)[column].type, items[column], cell.size())) {
        return absl::InvalidArgumentError(absl::StrCat("column '", (*columns)[column].name, "' is ",
                                                       ToString((*columns)[column].type), ", but a cell has ",
                                                       cell.size(), " bytes"));
      }
      data.cells.push_back({cell, run.weights_version, run.partial});
    }
  }
  TDOCK_RETURN_IF_ERROR(DecodePieces(message, data));
  data.columns = std::move(columns);
  data.pins = std::move(bytes.pins);
  data.look_privately = std::move(bytes.look_privately);
  return std::move(data).ToRows();
}

}  // namespace tdock::service
