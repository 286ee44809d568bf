#include "text/jinja/value.h"

#include <algorithm>
#include <cstring>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/compare.h"
#include "text/jinja/node.h"

namespace tdock::jinja {
namespace {

constexpr size_t kPairsWithoutIndex = 8;

int NestingOf(const Value::Items& items) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.nesting());
  return deepest + 1;
}

void CheckNesting(int nesting, Meter* meter) {
  if (nesting <= kMaxNesting) return;
  TDOCK_CHECK(meter != nullptr, "lists and dicts of an input nest too deep");
  meter->NestTooDeep();
}

}  // namespace

void Meter::Poll() {
  if (steps_left_ < 0) Fail("steps", static_cast<uint64_t>(steps_limit_));
  poll_at_ = std::max<int64_t>(steps_left_ - kStepsBetweenPolls, 0);
  if (failed_ || !stop_) return;
  stop_status_ = stop_();
  failed_ = !stop_status_.ok();
}

absl::Status Meter::status() const {
  if (!failed_) return absl::OkStatus();
  if (stopped()) return stop_status_;
  if (what_ == kLevels) {
    return absl::ResourceExhaustedError(absl::StrCat("lists and dicts nest more than ", kMaxNesting, " levels deep"));
  }
  return absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", limit_, " ", what_));
}

uint64_t HashOf(absl::string_view text) { return absl::HashOf(text); }

DictNode::DictNode(Value::Pairs made, int32_t of_turn, Meter* charged) : Node(charged), mark(of_turn) {
  pairs.reserve(made.size());
  if (made.size() > kPairsWithoutIndex) index_.assign(std::max<size_t>(32, made.size() * 4), 0);
  for (auto& [key, value] : made) {
    const int64_t found = Find(key);
    if (found >= 0) {
      pairs[static_cast<size_t>(found)].second = std::move(value);
      continue;
    }
    nesting = std::max({nesting, key.nesting() + 1, value.nesting() + 1});
    pairs.emplace_back(std::move(key), std::move(value));
    if (!index_.empty()) Index();
  }
  Charge(sizeof(DictNode) + pairs.capacity() * sizeof(Value::Pairs::value_type) + index_.size() * sizeof(uint32_t));
}

// Puts the last pair into the index.
void DictNode::Index() {
  size_t at = Hash(pairs.back().first) % index_.size();
  while (index_[at] != 0) at = (at + 1) % index_.size();
  index_[at] = static_cast<uint32_t>(pairs.size());
}

template <class Matches>
int64_t DictNode::Lookup(uint64_t hash, const Matches& matches) const {
  for (size_t at = hash % index_.size(); index_[at] != 0; at = (at + 1) % index_.size()) {
    if (matches(pairs[index_[at] - 1].first)) return index_[at] - 1;
  }
  return -1;
}

int64_t DictNode::Find(const Value& key) const {
  if (key.is_text()) return FindString(key.AsText().bytes());
  const auto matches = [&](const Value& other) { return Equal(other, key, nullptr); };
  if (!index_.empty()) return Lookup(Hash(key), matches);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (matches(pairs[i].first)) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t DictNode::FindString(absl::string_view key) const {
  const auto matches = [&](const Value& other) { return other.is_text() && other.AsText().bytes() == key; };
  if (!index_.empty()) return Lookup(HashOf(key), matches);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (matches(pairs[i].first)) return static_cast<int64_t>(i);
  }
  return -1;
}

Value Value::Bool(bool value) {
  Value made(Kind::kBool);
  made.payload_.boolean = value;
  return made;
}

Value Value::Int(int64_t value) {
  Value made(Kind::kInt);
  made.payload_.integer = value;
  return made;
}

Value Value::Uint(uint64_t value) {
  if (value <= static_cast<uint64_t>(INT64_MAX)) return Int(static_cast<int64_t>(value));
  Value made(Kind::kUint);
  made.payload_.natural = value;
  return made;
}

Value Value::Float(double value) {
  Value made(Kind::kFloat);
  made.payload_.real = value;
  return made;
}

Value Value::String(absl::string_view bytes, Origin origin) {
  return Value(Kind::kText, new TextNode(Text(std::string(bytes), origin), nullptr));
}

Value Value::String(Text text, Meter* meter) { return Value(Kind::kText, new TextNode(std::move(text), meter)); }

Value Value::List(Items items, Meter* meter) {
  const int nesting = NestingOf(items);
  CheckNesting(nesting, meter);
  return Value(Kind::kList, new ItemsNode(std::move(items), nesting, meter));
}

Value Value::Tuple(Items items, Meter* meter) {
  const int nesting = NestingOf(items);
  CheckNesting(nesting, meter);
  return Value(Kind::kTuple, new ItemsNode(std::move(items), nesting, meter));
}

Value Value::Group(Value grouper, Value items, Meter* meter) {
  Value made = Tuple({std::move(grouper), std::move(items)}, meter);
  static_cast<ItemsNode*>(made.payload_.node)->is_group = true;
  return made;
}

Value Value::Markup(Text text, Meter* meter) {
  Value made = String(std::move(text), meter);
  static_cast<TextNode*>(made.payload_.node)->is_markup = true;
  return made;
}

bool Value::is_markup() const { return kind_ == Kind::kText && static_cast<const TextNode*>(payload_.node)->is_markup; }

bool Value::is_group() const { return kind_ == Kind::kTuple && static_cast<const ItemsNode*>(payload_.node)->is_group; }

Value Value::Dict(Pairs pairs, int32_t mark, Meter* meter) {
  auto* const node = new DictNode(std::move(pairs), mark, meter);
  Value made(Kind::kDict, node);
  CheckNesting(node->nesting, meter);
  return made;
}

Value Value::Undefined(std::string message, Meter* meter) {
  return Value(Kind::kUndefined, new UndefinedNode(std::move(message), meter));
}

Value Value::OfObject(Object& object) {
  Value made(Kind::kObject);
  made.payload_.object = &object;
  return made;
}

bool Value::is_counted() const {
  switch (kind_) {
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return true;
    case Kind::kUndefined:
      return payload_.node != nullptr;
    default:
      return false;
  }
}

Value::Value(const Value& other) : kind_(other.kind_), payload_(other.payload_) {
  if (is_counted()) payload_.node->references.fetch_add(1, std::memory_order_relaxed);
}

Value& Value::operator=(const Value& other) {
  if (this != &other) *this = Value(other);
  return *this;
}

Value& Value::operator=(Value&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(payload_, other.payload_);
  return *this;
}

void Value::Release() {
  if (is_counted() && payload_.node->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete payload_.node;
}

const Text& Value::AsText() const { return static_cast<const TextNode*>(payload_.node)->text; }
const Value::Items& Value::AsItems() const { return static_cast<const ItemsNode*>(payload_.node)->items; }
const DictNode& Value::AsDict() const { return *static_cast<const DictNode*>(payload_.node); }

absl::string_view Value::undefined_message() const {
  if (payload_.node == nullptr) return "the value is undefined";
  return static_cast<const UndefinedNode*>(payload_.node)->message;
}

const Value* Value::Find(absl::string_view key) const {
  const int64_t found = AsDict().FindString(key);
  return found < 0 ? nullptr : &AsDict().pairs[static_cast<size_t>(found)].second;
}

int32_t Value::mark() const { return is_dict() ? AsDict().mark : -1; }

int Value::nesting() const {
  if (is_sequence()) return static_cast<const ItemsNode*>(payload_.node)->nesting;
  return is_dict() ? AsDict().nesting : 0;
}

namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Value> TextFromJson(const std::string& text, Origin origin) {
  if (FindInvalidUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is not UTF-8"));
  return Value::String(text, origin);
}

absl::StatusOr<Value> FromJsonAt(const Json& json, Origin origin, int level) {
  if (level > kMaxNesting) {
    return absl::InvalidArgumentError(absl::StrCat("lists and dicts nest more than ", kMaxNesting, " levels deep"));
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::Uint(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return TextFromJson(json.get_ref<const std::string&>(), origin);
    case Json::value_t::array: {
      Value::Items items;
      items.reserve(json.size());
      for (const Json& item : json) {
        TDOCK_ASSIGN_OR_RETURN(Value value, FromJsonAt(item, origin, level + 1));
        items.push_back(std::move(value));
      }
      return Value::List(std::move(items));
    }
    case Json::value_t::object: {
      Value::Pairs pairs;
      pairs.reserve(json.size());
      for (const auto& [name, item] : json.items()) {
        TDOCK_ASSIGN_OR_RETURN(Value key, TextFromJson(name, origin));
        TDOCK_ASSIGN_OR_RETURN(Value value, FromJsonAt(item, origin, level + 1));
        pairs.emplace_back(std::move(key), std::move(value));
      }
      return Value::Dict(std::move(pairs));
    }
    default:
      return Value::None();
  }
}

}  // namespace

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, Origin origin) {
  return FromJsonAt(json, origin, 1);
}

}  // namespace tdock::jinja
