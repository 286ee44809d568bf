#include "runtime/replica/rows_message.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/table/rows_data.h"
#include "tdock/frame.h"

namespace tdock::runtime {
namespace {

// The names of columns of the frame that have something of each row; a tag is a list of two in the meta.
constexpr char kIds[] = "ids", kGroups[] = "groups", kRedeliveries[] = "redeliveries", kAges[] = "ages";
constexpr char kEpochs[] = "epochs", kKeys[] = "keys", kColumns[] = "columns", kTags[] = "tags", kFacts[] = "facts";
constexpr int64_t kPresent = 1, kPartial = 2;
// The address of a cell without bytes: such a cell exists, so it must not be null.
constexpr std::byte kNoBytes{};
// Rows of one take may be many, and their names are not all of the message.
constexpr FrameLimits kLimits{
    .max_header_bytes = size_t{1} << 30, .max_frame_bytes = size_t{1} << 50, .allow_unchecked = true};

std::string CellsName(size_t column) { return absl::StrCat("cells ", column); }
std::string StatesName(size_t column) { return absl::StrCat("states ", column); }
std::string PiecesName(size_t column) { return absl::StrCat("pieces ", column); }

// What a function says of each row.
template <class Of>
absl::Status AddNumbers(const Rows& rows, const char* name, const Of& of, Batch& batch) {
  std::vector<int64_t> values(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) values[row] = static_cast<int64_t>(of(row));
  return batch.Add(name, Column::FromValues(values));
}

absl::StatusOr<Column> CellsOf(const Rows& rows, size_t column) {
  Buffer offsets = Buffer::Allocate((rows.size() + 1) * sizeof(int64_t));
  auto* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *offset = 0;
  for (size_t row = 0; row < rows.size(); ++row, ++offset) {
    offset[1] = offset[0] + static_cast<int64_t>(rows.cell(row, column).bytes.size());
  }
  Buffer values = Buffer::Allocate(static_cast<size_t>(*offset));
  std::byte* to = values.mutable_data();
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::span<const std::byte> bytes = rows.cell(row, column).bytes;
    to = std::copy(bytes.begin(), bytes.end(), to);
  }
  return Column::MakeBytes(std::move(values), std::move(offsets));
}

// The version and the state of each cell; and of cells that were made in several pieces, end and version of each.
absl::Status AddStates(const Rows& rows, size_t column, Batch& batch) {
  std::vector<std::vector<int64_t>> states, pieces;
  for (size_t row = 0; row < rows.size(); ++row) {
    const Cell& cell = rows.cell(row, column);
    const bool present = cell.bytes.data() != nullptr;
    states.push_back({cell.weights_version, (present ? kPresent : 0) | (cell.partial ? kPartial : 0)});
    pieces.emplace_back();
    const auto& all = Rows::Data::Of(rows).pieces;
    if (const auto found = all.find(column * rows.size() + row); found != all.end()) {
      for (const Piece& piece : found->second) {
        pieces.back().insert(pieces.back().end(), {piece.end, piece.weights_version});
      }
    }
  }
  TDOCK_RETURN_IF_ERROR(batch.Add(StatesName(column), Column::FromRows(states)));
  return batch.Add(PiecesName(column), Column::FromRows(pieces));
}

MetaValue ToMeta(const ColumnSpec& spec) {
  MetaValue::List list = {spec.name, static_cast<int64_t>(spec.type.kind), static_cast<int64_t>(spec.type.dtype)};
  for (const int64_t size : spec.type.row_shape) list.emplace_back(size);
  return list;
}

MetaValue ToMeta(const Tags& tags) {
  MetaValue::List list;
  for (const auto& [name, value] : tags) list.push_back(MetaValue::List{name, value});
  return list;
}

// Reads what Encode() wrote. The first thing that is not there, or not of its type, is the error.
class Reader {
 public:
  explicit Reader(MetaBatch frame) : frame_(std::move(frame)) {}

  absl::StatusOr<RowsMessage> Read() {
    RowsMessage message;
    TDOCK_ASSIGN_OR_RETURN(message.facts, Get<Meta>(kFacts));
    if (frame_.columns().empty()) return message;
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, Numbers(kIds));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> groups, Numbers(kGroups));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> redeliveries, Numbers(kRedeliveries));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> ages, Numbers(kAges));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> epochs, Numbers(kEpochs));
    data_.ids.assign(ids.begin(), ids.end());
    data_.groups.assign(groups.begin(), groups.end());
    data_.redeliveries.assign(redeliveries.begin(), redeliveries.end());
    data_.ages.assign(ages.begin(), ages.end());
    data_.epochs.assign(epochs.begin(), epochs.end());
    TDOCK_RETURN_IF_ERROR(ReadLabels());
    TDOCK_ASSIGN_OR_RETURN(const MetaValue::List specs, Get<MetaValue::List>(kColumns));
    auto columns = std::make_shared<std::vector<ColumnSpec>>();
    for (const MetaValue& spec : specs) {
      TDOCK_RETURN_IF_ERROR(ReadSpec(spec, *columns));
      TDOCK_RETURN_IF_ERROR(ReadCells(columns->size() - 1));
    }
    data_.columns = std::move(columns);
    message.rows = std::move(data_).ToRows();
    return message;
  }

 private:
  static absl::Status NotThere(absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("rows of another rank: no '", what, "', or not what it must be"));
  }

  template <class T>
  absl::StatusOr<T> Get(const char* name) const {
    const auto found = frame_.meta().find(name);
    const T* value = found == frame_.meta().end() ? nullptr : found->second.As<T>();
    if (value == nullptr) return NotThere(name);
    return *value;
  }

  absl::StatusOr<std::vector<int64_t>> Numbers(const char* name) const {
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int64_t> values, frame_.columns().Values<int64_t>(name));
    if (values.size() != static_cast<size_t>(frame_.rows())) return NotThere(name);
    return std::vector<int64_t>(values.begin(), values.end());
  }

  absl::Status ReadLabels() {
    TDOCK_ASSIGN_OR_RETURN(const Column keys, frame_.columns().Get(kKeys));
    for (int64_t row = 0; row < frame_.rows(); ++row) {
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view key, keys.Text(row));
      data_.keys.emplace_back(key);
    }
    TDOCK_ASSIGN_OR_RETURN(const MetaValue::List tags, Get<MetaValue::List>(kTags));
    if (!tags.empty() && tags.size() != data_.ids.size()) return NotThere(kTags);
    for (const MetaValue& of_row : tags) {
      const auto* list = of_row.As<MetaValue::List>();
      if (list == nullptr) return NotThere(kTags);
      auto decoded = std::make_shared<Tags>();
      for (const MetaValue& entry : *list) {
        const auto* pair = entry.As<MetaValue::List>();
        const bool fits = pair != nullptr && pair->size() == 2 && pair->front().As<std::string>() != nullptr &&
                          pair->back().As<std::string>() != nullptr;
        if (!fits) return NotThere(kTags);
        decoded->emplace(*pair->front().As<std::string>(), *pair->back().As<std::string>());
      }
      data_.tags.push_back(std::move(decoded));
    }
    return absl::OkStatus();
  }

  static absl::Status ReadSpec(const MetaValue& value, std::vector<ColumnSpec>& specs) {
    const auto* list = value.As<MetaValue::List>();
    if (list == nullptr || list->size() < 3 || list->front().As<std::string>() == nullptr) return NotThere(kColumns);
    std::vector<int64_t> numbers;
    for (const MetaValue& number : std::span(*list).subspan(1)) {
      if (number.As<int64_t>() == nullptr) return NotThere(kColumns);
      numbers.push_back(*number.As<int64_t>());
    }
    ColumnSpec spec{.name = *list->front().As<std::string>()};
    spec.type.kind = static_cast<ColumnKind>(numbers[0]);
    spec.type.dtype = static_cast<DType>(numbers[1]);
    spec.type.row_shape = Shape(std::span(numbers).subspan(2));
    TDOCK_RETURN_IF_ERROR(ItemBytes(spec.type).status());
    specs.push_back(std::move(spec));
    return absl::OkStatus();
  }

  absl::Status ReadCells(size_t column) {
    TDOCK_ASSIGN_OR_RETURN(const Column cells, frame_.columns().Get(CellsName(column)));
    for (int64_t row = 0; row < cells.rows(); ++row) {
      TDOCK_ASSIGN_OR_RETURN(const auto state, frame_.columns().Row<int64_t>(StatesName(column), row));
      TDOCK_ASSIGN_OR_RETURN(const auto pieces, frame_.columns().Row<int64_t>(PiecesName(column), row));
      if (state.size() != 2 || pieces.size() % 2 != 0) return NotThere(StatesName(column));
      std::span<const std::byte> bytes = cells.RowBytes(row);
      if ((state[1] & kPresent) == 0) {
        bytes = {};
      } else if (bytes.empty()) {
        bytes = {&kNoBytes, 0};
      }
      for (size_t i = 0; i < pieces.size(); i += 2) {
        data_.pieces[data_.cells.size()].push_back({pieces[i], pieces[i + 1]});
      }
      data_.cells.push_back({bytes, state[0], (state[1] & kPartial) != 0});
    }
    data_.pins.push_back(cells.values().owner());
    return absl::OkStatus();
  }

  const MetaBatch frame_;
  Rows::Data data_;
};

absl::Status AddRows(const Rows& rows, Batch& batch, Meta& meta) {
  TDOCK_RETURN_IF_ERROR(AddNumbers(
      rows, kIds, [&](size_t i) { return rows.ids()[i]; }, batch));
  TDOCK_RETURN_IF_ERROR(AddNumbers(
      rows, kGroups, [&](size_t i) { return rows.groups()[i]; }, batch));
  TDOCK_RETURN_IF_ERROR(AddNumbers(
      rows, kRedeliveries, [&](size_t i) { return rows.redeliveries(i); }, batch));
  TDOCK_RETURN_IF_ERROR(AddNumbers(
      rows, kAges, [&](size_t i) { return rows.age(i); }, batch));
  TDOCK_RETURN_IF_ERROR(AddNumbers(
      rows, kEpochs, [&](size_t i) { return rows.epoch(i); }, batch));
  std::vector<std::string> keys;
  MetaValue::List tags, columns;
  bool any_tags = false;
  for (size_t row = 0; row < rows.size(); ++row) {
    keys.emplace_back(rows.key(row));
    tags.push_back(ToMeta(rows.tags(row)));
    any_tags = any_tags || !rows.tags(row).empty();
  }
  TDOCK_RETURN_IF_ERROR(batch.Add(kKeys, Column::FromStrings(keys)));
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    columns.push_back(ToMeta(rows.columns()[column]));
    TDOCK_RETURN_IF_ERROR(batch.Add(CellsName(column), CellsOf(rows, column)));
    TDOCK_RETURN_IF_ERROR(AddStates(rows, column, batch));
  }
  meta.emplace(kTags, any_tags ? std::move(tags) : MetaValue::List());
  meta.emplace(kColumns, std::move(columns));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Buffer> Encode(const RowsMessage& message) {
  Batch batch;
  Meta meta = {{kFacts, message.facts}};
  if (!message.rows.empty()) TDOCK_RETURN_IF_ERROR(AddRows(message.rows, batch, meta));
  TDOCK_ASSIGN_OR_RETURN(const EncodedFrame frame,
                         EncodeFrame(MetaBatch(std::move(batch), std::move(meta)), kLimits, FrameChecksums::kNone));
  const std::vector<absl::string_view> pieces = frame.Pieces();
  size_t total = 0;
  for (const absl::string_view piece : pieces) total += piece.size();
  Buffer bytes = Buffer::Allocate(total);
  std::byte* to = bytes.mutable_data();
  for (const absl::string_view piece : pieces) {
    to = std::copy_n(reinterpret_cast<const std::byte*>(piece.data()), piece.size(), to);
  }
  return bytes;
}

absl::StatusOr<RowsMessage> Decode(const Buffer& bytes) {
  TDOCK_ASSIGN_OR_RETURN(MetaBatch frame, DecodeFrame(bytes, kLimits));
  return Reader(std::move(frame)).Read();
}

}  // namespace tdock::runtime
