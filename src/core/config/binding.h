// The kinds of values of keys: how each is parsed, shown and described. Internal to this module.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "core/config/value.h"

namespace tdock::config {

// An addition to what Expected() says for a text that begins like a list.
std::string HintAtList(const Given& given);

// One key bound to one field. Not thread-safe.
class Binding {
 public:
  Binding(std::string key, std::string doc) : key_(std::move(key)), doc_(std::move(doc)) {}
  virtual ~Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  const std::string& key() const { return key_; }
  const std::string& doc() const { return doc_; }
  // The field when it was bound.
  const Value& default_value() const { return default_; }
  void remember_default() { default_ = Get(); }
  // From now on Fill() takes the scalar `other`, in upper or lower case, for `value`.
  void AddOtherValue(absl::string_view other, std::string value);
  // From now on Hint() says `why` of this scalar, which Fill() does not take.
  void AddRefusedValue(absl::string_view other, std::string why);

  // Sets the field, or returns false and leaves it unchanged if `value` is not what Expected() says.
  bool Fill(const Value& value);
  virtual bool takes_list() const { return false; }
  // The field, as Fill() takes it.
  virtual Value Get() const = 0;
  // What Fill() takes, such as "integer ≥ 1".
  virtual std::string Expected() const = 0;
  // An addition to that for the value `given`, such as " in 64 bits"; often empty.
  virtual std::string Hint(const Given& given) const;

 protected:
  virtual bool Set(const Given& given) = 0;
  // The same for a list of scalars. Most kinds take none.
  virtual bool SetItems(const std::vector<Given>&) { return false; }

 private:
  const std::string key_;
  const std::string doc_;
  Value default_;
  absl::flat_hash_map<std::string, std::string> other_values_;    // by the other in lower case
  absl::flat_hash_map<std::string, std::string> refused_values_;  // the reasons, likewise
};

class IntBinding final : public Binding {
 public:
  IntBinding(std::string key, std::string doc, int64_t* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void AtLeast(int64_t bound) { min_ = bound; }
  void AtMost(int64_t bound) { max_ = bound; }
  Value Get() const override;
  std::string Expected() const override;
  std::string Hint(const Given& given) const override;

 private:
  bool Set(const Given& given) override;

  int64_t* const field_;
  int64_t min_ = std::numeric_limits<int64_t>::min();
  int64_t max_ = std::numeric_limits<int64_t>::max();
};

class FloatBinding final : public Binding {
 public:
  FloatBinding(std::string key, std::string doc, double* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void AtLeast(double bound) { min_ = bound, above_min_ = false; }
  void MoreThan(double bound) { min_ = bound, above_min_ = true; }
  void AtMost(double bound) { max_ = bound, below_max_ = false; }
  void LessThan(double bound) { max_ = bound, below_max_ = true; }
  Value Get() const override;
  std::string Expected() const override;

 private:
  bool Set(const Given& given) override;

  double* const field_;
  double min_ = -std::numeric_limits<double>::infinity();
  double max_ = std::numeric_limits<double>::infinity();
  bool above_min_ = false;
  bool below_max_ = false;
};

class BoolBinding final : public Binding {
 public:
  BoolBinding(std::string key, std::string doc, bool* field) : Binding(std::move(key), std::move(doc)), field_(field) {}
  Value Get() const override { return {.scalar = {.text = *field_ ? "true" : "false"}}; }
  std::string Expected() const override { return "true or false"; }

 private:
  bool Set(const Given& given) override;

  bool* const field_;
};

class StringBinding final : public Binding {
 public:
  StringBinding(std::string key, std::string doc, std::string* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void NotEmpty() { not_empty_ = true; }
  void OrList() { or_list_ = true; }
  bool takes_list() const override { return or_list_; }
  Value Get() const override;
  std::string Expected() const override;
  std::string Hint(const Given& given) const override { return or_list_ ? HintAtList(given) : ""; }

 private:
  bool Set(const Given& given) override;
  bool SetItems(const std::vector<Given>& items) override;

  std::string* const field_;
  bool not_empty_ = false;
  bool or_list_ = false;
};

class StringsBinding final : public Binding {
 public:
  StringsBinding(std::string key, std::string doc, std::vector<std::string>* field)
      : Binding(std::move(key), std::move(doc)), field_(field) {}
  void NotEmpty() { not_empty_ = true; }
  bool takes_list() const override { return true; }
  Value Get() const override;
  std::string Expected() const override { return not_empty_ ? "list of texts, not empty" : "list of texts"; }
  std::string Hint(const Given& given) const override { return HintAtList(given); }

 private:
  // An empty text is no item.
  bool Set(const Given& given) override { return given.null || !given.text.empty() ? SetItems({given}) : SetItems({}); }
  bool SetItems(const std::vector<Given>& items) override;

  std::vector<std::string>* const field_;
  bool not_empty_ = false;
};

class ChoiceBinding final : public Binding {
 public:
  ChoiceBinding(std::string key, std::string doc, std::vector<std::string> names, std::function<void(size_t)> set,
                std::function<size_t()> get)
      : Binding(std::move(key), std::move(doc)), names_(std::move(names)), set_(std::move(set)), get_(std::move(get)) {}
  Value Get() const override;
  std::string Expected() const override;

 private:
  bool Set(const Given& given) override;

  const std::vector<std::string> names_;
  const std::function<void(size_t)> set_;
  const std::function<size_t()> get_;
};

}  // namespace tdock::config
