#include "common/guided/json_schema/document.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/guided/json_schema/number_range.h"

namespace tandem::guided::json_schema {
namespace {

constexpr int kDepthMax = 200;

// The parser compares a member's name with those before it in its object. So many comparisons take
// about as long as a step.
constexpr size_t kComparisonsPerStep = 4;

// Looks at brackets and members outside strings before the parser runs: it recurses, and its time
// grows with the square of an object's members.
absl::Status CheckShape(absl::string_view text, CompileBudget& budget) {
  // Bound: the source's bytes. The members so far of each open object; of a list none.
  std::vector<size_t> open;
  int deepest = 0;
  bool has_budget = true;
  VisitOutsideStrings(text, [&](size_t, char c) {
    if (c == '{' || c == '[') {
      open.push_back(0);
      deepest = std::max(deepest, static_cast<int>(open.size()));
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    } else if (c == ':' && !open.empty()) {
      has_budget = budget.Spend(open.back()++ / kComparisonsPerStep);
    }
    return has_budget;
  });
  if (!has_budget) return budget.status();
  if (deepest <= kDepthMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("json_schema: nests deeper than ", kDepthMax, " levels"));
}

// Prepends the path from `at` to `wanted`. False when it is not below `at`.
bool FindPath(const Json& at, const Json* wanted, std::string& path) {
  if (&at == wanted) return true;
  if (at.is_object()) {
    for (const auto& [key, value] : at.items()) {
      if (!FindPath(value, wanted, path)) continue;
      const std::string escaped = absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}});
      path = absl::StrCat("/", Shown(escaped), path);
      return true;
    }
  } else if (at.is_array()) {
    for (size_t i = 0; i < at.size(); ++i) {
      if (!FindPath(at[i], wanted, path)) continue;
      path = absl::StrCat("/", i, path);
      return true;
    }
  }
  return false;
}

// Keywords whose values are objects of schemas, by names of the client's.
constexpr std::array<absl::string_view, 4> kMaps = {"properties", "patternProperties", "$defs",
                                                    "definitions"};
// Keywords whose values are data.
constexpr std::array<absl::string_view, 4> kData = {"enum", "const", "examples", "default"};

bool IsOneOf(const std::array<absl::string_view, 4>& keywords, absl::string_view key) {
  return std::find(keywords.begin(), keywords.end(), key) != keywords.end();
}

// `is_map`: `at` is the value of one of kMaps.
void FindAnchors(const Json& at, bool is_map,
                 absl::flat_hash_map<std::string, const Json*>& anchors) {
  if (!at.is_structured()) return;
  const bool is_schema = at.is_object() && !is_map;
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = is_schema ? at.find(keyword) : at.end();
    if (anchor != at.end() && anchor->is_string()) {
      anchors.emplace(anchor->get<std::string>(), &at);
    }
  }
  for (const auto& [key, value] : at.items()) {
    if (is_schema && IsOneOf(kData, key)) continue;
    FindAnchors(value, is_schema && value.is_object() && IsOneOf(kMaps, key), anchors);
  }
}

// Builds the value that a text is. In the place of an integer that neither 64 bits nor a double
// hold, it puts the integer's text as a binary value, which JSON cannot have.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Json& root() { return root_; }
  bool has_inexact() const { return has_inexact_; }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != text.npos || IsText(value, text)) return Put(value);
    has_inexact_ = true;
    return Put(Json::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  // Whether `value` is written as the integer `text`.
  static bool IsText(double value, const std::string& text) {
    const auto written = ToDecimal(value), wanted = ParseDecimal(text);
    return written.ok() && wanted.ok() && Compare(*written, *wanted) == 0;
  }

  // Where the next value goes.
  Json& Place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return (*open_.back())[key_];
    open_.back()->push_back(nullptr);
    return open_.back()->back();
  }
  bool Put(Json value) {
    Place() = std::move(value);
    return true;
  }
  bool Open(Json value) {
    Json& place = Place();
    place = std::move(value);
    open_.push_back(&place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // Bound: kDepthMax
  std::string key_;
  bool has_inexact_ = false;
};

// Puts the nearest double in the place of each text that a Reader left, and notes the text for it
// and for each value around it. Returns a text that is in `at`; empty when there is none.
std::string NoteInexact(Json& at, absl::flat_hash_map<const Json*, std::string>& inexact) {
  std::string text;
  if (at.is_binary()) {
    double nearest = 0;
    text.assign(at.get_binary().begin(), at.get_binary().end());
    static_cast<void>(absl::SimpleAtod(text, &nearest));  // the parser has read it as a number
    at = nearest;
  } else if (at.is_structured()) {
    for (Json& value : at) {
      std::string inner = NoteInexact(value, inexact);
      if (text.empty()) text = std::move(inner);
    }
  }
  if (!text.empty()) inexact.emplace(&at, text);
  return text;
}

// Decodes the percent-escapes of a URI's fragment.
std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

bool Equal(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !Equal(value, *other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), Equal);
  }
  return a == b;
}

size_t Weight(const Json& value) {
  constexpr size_t kBytesPerStep = 32;
  if (value.is_string()) return 1 + value.get_ref<const std::string&>().size() / kBytesPerStep;
  if (!value.is_structured()) return 1;
  // A member is looked for among the others.
  const size_t members = value.is_object() ? value.size() : 0;
  size_t weight = 1 + members * members / (2 * kComparisonsPerStep);
  for (const Json& item : value) weight += Weight(item);
  return weight;
}

absl::StatusOr<std::unique_ptr<Document>> Document::Parse(absl::string_view text,
                                                          CompileBudget& budget) {
  RETURN_IF_ERROR(CheckShape(text, budget));
  auto document = std::make_unique<Document>();
  Reader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError("json_schema: is not valid JSON");
  }
  document->root_ = std::move(reader.root());
  if (reader.has_inexact()) NoteInexact(document->root_, document->inexact_);
  const Json& root = document->root_;
  if (!root.is_object() && !root.is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: expected an object, got ", root.type_name()));
  }
  if (root.is_object()) {
    const auto id = root.find("$id");
    if (id != root.end() && id->is_string()) {
      document->id_ = std::string(absl::StripSuffix(id->get<std::string>(), "#"));
    }
  }
  FindAnchors(root, /*is_map=*/false, document->anchors_);
  return document;
}

absl::StatusOr<const Json*> Document::Resolve(const std::string& reference,
                                              CompileBudget& budget) const {
  const auto unknown = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: $ref ", ShownInQuotes(reference), ": ", why));
  };
  absl::string_view rest = reference;
  if (!id_.empty()) absl::ConsumePrefix(&rest, id_);
  if (!rest.empty() && !absl::ConsumePrefix(&rest, "#")) {
    return unknown("only references within the document (#...) are supported");
  }
  if (rest.empty()) return &root_;
  const std::string fragment = Unescape(rest);
  if (fragment[0] != '/') {
    const auto anchor = anchors_.find(fragment);
    return anchor == anchors_.end() ? absl::StatusOr<const Json*>(unknown("no such $anchor"))
                                    : anchor->second;
  }
  const Json* at = &root_;
  for (const absl::string_view part : absl::StrSplit(fragment.substr(1), '/')) {
    if (!budget.Spend(1 + at->size() / kComparisonsPerStep)) return budget.status();
    const std::string key = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    if (const auto member = at->find(key); member != at->end()) {
      at = &*member;
    } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return unknown(absl::StrCat("there is no ", ShownInQuotes(key)));
    }
  }
  return at;
}

std::string Document::PathOf(const Json& node) const {
  std::string path;
  FindPath(root_, &node, path);
  return ShownPath(absl::StrCat("#", path), "/");
}

absl::Status Document::Error(const Json& schema, absl::string_view keyword,
                             absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("json_schema: ", PathOf(schema), ": ", Shown(keyword), ": ", what));
}

}  // namespace tandem::guided::json_schema
