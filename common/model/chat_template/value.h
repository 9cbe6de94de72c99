// A value of the template language: Python's undefined, None, bool, int, float, str, list, tuple,
// dict, plus namespaces, macros, bound methods and the `loop` object. Copies share their contents;
// lists and dicts never change after construction, so values form cycles only through namespaces
// and scopes, which the evaluator empties when it ends.
// Thread safety: a value belongs to one rendering, on one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::model::chat_template {

// Python's integers are unbounded. Here an operation whose result exceeds this type fails.
using Integer = __int128;
std::string IntegerText(Integer value);

class Value;
struct Macro;
struct Scope;

// The longest text of a value. It bounds the printing of a value that contains another one many
// times.
inline constexpr int64_t kTextBytesMax = int64_t{64} << 20;

struct Undefined {
  // "'x' is undefined": what an operation on it reports. Never null.
  std::shared_ptr<const std::string> reason;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  // A generator (the result of selectattr, map and similar filters): always true, without length or
  // index.
  bool is_generator = false;
  int32_t depth = 1;
};

// Insertion-ordered; keys are texts, numbers, bools and None.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  absl::flat_hash_map<std::string, size_t> index;  // by KeyText
  int32_t depth = 1;

  const Value* Find(const Value& key) const;
  const Value* FindText(absl::string_view key) const;
  // Adds or replaces. REQUIRES: IsHashable(key).
  void Set(const Value& key, const Value& value);
};

struct Namespace {
  Dict attributes;
};

// The `loop` variable.
struct LoopState {
  explicit LoopState(std::vector<Value> of);

  const std::vector<Value> items;
  size_t index = 0;
  int32_t depth = 1;
};

// Something callable: a macro, a global function, or a method bound to a value.
struct Callable {
  enum class Kind { kMacro, kGlobal, kMethod };
  Kind kind;
  std::string name;
  std::shared_ptr<const Macro> macro;  // kMacro
  std::shared_ptr<Scope> scope;        // kMacro: where it was defined
  std::shared_ptr<const Value> self;   // kMethod
};

class Value {
 public:
  Value() : data_(None{}) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(Integer value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  explicit Value(absl::string_view text) : Value(std::string(text)) {}
  explicit Value(const char* text) : Value(std::string(text)) {}
  explicit Value(Dict dict);
  explicit Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<LoopState> value) : data_(std::move(value)) {}
  explicit Value(Callable value) : data_(std::make_shared<const Callable>(std::move(value))) {}

  static Value MakeInteger(int64_t value) { return Value(static_cast<Integer>(value)); }
  static Value MakeUndefined(std::string reason);
  static Value MakeList(std::vector<Value> items);
  static Value MakeTuple(std::vector<Value> items);
  static Value MakeGenerator(std::vector<Value> items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<Integer>(data_); }
  bool is_double() const { return std::holds_alternative<double>(data_); }
  bool is_text() const { return std::holds_alternative<TextPtr>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }  // tuples, generators too
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_namespace() const { return std::holds_alternative<NamespacePtr>(data_); }
  bool is_loop() const { return std::holds_alternative<LoopPtr>(data_); }
  bool is_callable() const { return std::holds_alternative<CallablePtr>(data_); }
  bool is_generator() const { return is_list() && list().is_generator; }
  bool is_number() const { return is_bool() || is_integer() || is_double(); }
  bool is_whole() const { return is_bool() || is_integer(); }

  // REQUIRES: the value holds that kind.
  bool boolean() const { return std::get<bool>(data_); }
  double real() const;      // is_number()
  Integer integer() const;  // is_whole()
  const std::string& text() const { return *std::get<TextPtr>(data_); }
  const List& list() const { return *std::get<ListPtr>(data_); }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  Namespace& name_space() const { return *std::get<NamespacePtr>(data_); }
  LoopState& loop() const { return *std::get<LoopPtr>(data_); }
  const Callable& callable() const { return *std::get<CallablePtr>(data_); }
  const std::string& undefined_reason() const { return *std::get<Undefined>(data_).reason; }

  bool Truth() const;
  // Levels of nested lists, dicts, loops and bound methods; 0 for scalars and for values that may
  // form cycles.
  int32_t Depth() const;
  // Bytes or elements that the value holds directly: the cost of building it.
  int64_t Size() const;
  // "str", "int", "list", … for messages.
  absl::string_view TypeName() const;
  // str() and repr(), cut off once longer than kTextBytesMax. Namespaces and callables print a
  // fixed text.
  std::string Str() const;
  std::string Repr() const;

 private:
  struct None {};
  using TextPtr = std::shared_ptr<const std::string>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using LoopPtr = std::shared_ptr<LoopState>;
  using CallablePtr = std::shared_ptr<const Callable>;

  static Value FromItems(std::vector<Value> items, bool is_tuple, bool is_generator);
  void AppendRepr(std::string* out) const;

  friend bool SameObject(const Value& a, const Value& b);
  std::variant<None, Undefined, bool, Integer, double, TextPtr, ListPtr, DictPtr, NamespacePtr,
               LoopPtr, CallablePtr>
      data_;
};

// `a is b` for the kinds that have an identity.
bool SameObject(const Value& a, const Value& b);
bool IsHashable(const Value& value);
// Equal texts exactly for equal keys.
std::string KeyText(const Value& value);

// A binary value of `json` is the digits of an integer, which may have more than 64 bits; one that
// Integer does not hold becomes the nearest double. kInvalidArgument when `json` nests deeper than
// `depth_max`.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int32_t depth_max);

// json.dumps; kInvalidArgument for what JSON cannot hold or what is longer than kTextBytesMax.
struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonFormat& format);

}  // namespace tandem::model::chat_template
