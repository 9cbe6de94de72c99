#include "router/front_end/http/tool_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

const std::string kBegin = "<tool_call>";
const std::string kEnd = "</tool_call>";

// How many of the last bytes of `text` may be the beginning of `marker`.
size_t PartialSuffix(absl::string_view text, absl::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (absl::EndsWith(text, marker.substr(0, n))) return n;
  }
  return 0;
}

// Finds the whole objects of a list that may be cut off.
class ObjectScanner {
 public:
  explicit ObjectScanner(absl::string_view list) : rest_(list) {}

  // The next whole object; false if there is none.
  bool Next(absl::string_view& object) {
    const size_t begin = rest_.find('{');
    rest_.remove_prefix(std::min(begin, rest_.size()));
    int depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < rest_.size(); ++i) {
      const char c = rest_[i];
      if (in_text) {
        i += c == '\\' ? 1 : 0;
        in_text = c != '"';
        continue;
      }
      in_text = c == '"';
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (c != '}' || depth > 0) continue;
      object = rest_.substr(0, i + 1);
      rest_.remove_prefix(i + 1);
      return true;
    }
    return false;
  }
  // What follows the last whole object: an object that is cut off, or nothing.
  absl::string_view rest() const { return rest_; }

 private:
  absl::string_view rest_;
};

bool IsObject(absl::string_view json) {
  const absl::StatusOr<Json> value = ParseModelJson(absl::StripAsciiWhitespace(json));
  return value.ok() && value->is_object();
}

// The bytes of the JSON value at the beginning of `json`, up to its end.
size_t ValueBytes(absl::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
      return i;
    } else {
      in_text = c == '"';
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
  }
  return json.size();
}

// The text of the last member `name` of an object; empty if its name is not spelt so. REQUIRES:
// `object` is the text of a JSON object.
absl::string_view MemberText(absl::string_view object, absl::string_view name) {
  absl::string_view found;
  size_t at = object.find('{');
  while (at < object.size() && object[at] != '}') {
    const size_t key = object.find('"', at);
    if (key == absl::string_view::npos) break;
    size_t end = key + 1;
    while (end < object.size() && object[end] != '"') end += object[end] == '\\' ? 2 : 1;
    const size_t value = std::min(object.find(':', end), object.size() - 1) + 1;
    const absl::string_view text = object.substr(value, ValueBytes(object.substr(value)));
    if (object.substr(key + 1, end - key - 1) == name) found = text;
    at = value + text.size();
  }
  return found;
}

// `json` without blanks between its parts. Numbers keep their digits, which a parsed value may not.
std::string WithoutBlanks(absl::string_view json) {
  std::string out;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (!in_text && absl::ascii_isspace(static_cast<unsigned char>(c))) continue;
    out.push_back(c);
    if (in_text && c == '\\' && i + 1 < json.size()) out.push_back(json[++i]);
    if (c == '"') in_text = !in_text;
  }
  return out;
}

// One call's object and its text: its arguments are named "arguments" or "parameters", as an object
// or as the text of one.
bool ReadCall(const Json& object, absl::string_view json, ToolCall& call) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string()) return false;
  call.name = object["name"].get<std::string>();
  for (const char* name : {"arguments", "parameters"}) {
    if (!object.contains(name)) continue;
    const Json& arguments = object[name];
    if (arguments.is_string()) {
      call.arguments = arguments.get<std::string>();
      return IsObject(call.arguments);
    }
    if (!arguments.is_object()) return false;
    const absl::string_view text = MemberText(json, name);
    call.arguments = text.empty() ? JsonText(arguments) : WithoutBlanks(text);
    return true;
  }
  call.arguments = "{}";
  return true;
}

}  // namespace

ToolPieces ToolCallFinder::Append(absl::string_view text) {
  ToolPieces pieces;
  held_.append(text.data(), text.size());
  if (mode_ == ToolMode::kNone) {
    pieces.content = std::exchange(held_, "");
  } else if (mode_ == ToolMode::kAuto) {
    TakeSections(pieces);
  }
  return pieces;
}

void ToolCallFinder::AppendInOrder(absl::string_view text,
                                   absl::FunctionRef<void(const ToolPieces&)> give) {
  if (mode_ != ToolMode::kAuto) return give(Append(text));
  // Up to each '>', with which sections begin and end.
  while (!text.empty()) {
    const size_t end = text.find('>');
    const absl::string_view piece = text.substr(0, end == absl::string_view::npos ? end : end + 1);
    give(Append(piece));
    text.remove_prefix(piece.size());
  }
}

ToolPieces ToolCallFinder::AppendWithoutBlanks(absl::string_view text) {
  if (mode_ != ToolMode::kAuto) return Append(text);
  ToolPieces all;
  AppendInOrder(text, [&](const ToolPieces& pieces) { AddWithoutBlanks(pieces, all); });
  return all;
}

void ToolCallFinder::AddWithoutBlanks(const ToolPieces& pieces, ToolPieces& all) {
  blanks_ += pieces.content;
  text_begun_ = text_begun_ || !absl::StripLeadingAsciiWhitespace(pieces.content).empty();
  if (text_begun_) all.content += std::exchange(blanks_, "");
  if (pieces.calls.empty()) return;
  blanks_.clear();
  text_begun_ = false;
  all.calls.insert(all.calls.end(), pieces.calls.begin(), pieces.calls.end());
}

ToolPieces ToolCallFinder::FlushWithoutBlanks() {
  if (mode_ != ToolMode::kAuto) return Flush();
  ToolPieces all;
  AddWithoutBlanks(Flush(), all);
  // An answer of white space alone is text.
  if (!found_) all.content += std::exchange(blanks_, "");
  return all;
}

void ToolCallFinder::SectionScan::Take(char c) {
  if (!begun) {
    begun = !absl::ascii_isspace(static_cast<unsigned char>(c));
    is_json = c == '{';
  } else if (is_json && in_text) {
    // No JSON text has such a byte as it is.
    is_json = static_cast<unsigned char>(c) >= 0x20;
    in_text = is_json && (escaped || c != '"');
    escaped = !escaped && c == '\\';
  } else if (is_json) {
    in_text = c == '"';
  }
}

size_t ToolCallFinder::FindEnd(absl::string_view section) {
  size_t& at = scan_.at;
  for (at = std::max(at, kBegin.size()); at + kEnd.size() <= section.size(); ++at) {
    if (section[at] == '<' && absl::StartsWith(section.substr(at), kEnd)) {
      if (!scan_.in_text || rereads_left_ == 0) return at;
      if (scan_.first_mark == 0) scan_.first_mark = at;
    }
    scan_.Take(section[at]);
    if (!scan_.is_json && scan_.first_mark != 0) return scan_.first_mark;
  }
  return absl::string_view::npos;
}

void ToolCallFinder::TakeSections(ToolPieces& pieces) {
  const absl::string_view held = held_;
  size_t at = 0;  // what lies before is taken
  while (true) {
    const size_t begin = held.find(kBegin, at);
    if (begin == absl::string_view::npos) {
      const size_t rest = held.size() - at - PartialSuffix(held.substr(at), kBegin);
      absl::StrAppend(&pieces.content, held.substr(at, rest));
      held_.erase(0, at + rest);
      return;
    }
    absl::StrAppend(&pieces.content, held.substr(at, begin - at));
    at = begin;
    size_t end = FindEnd(held.substr(begin));
    if (end == absl::string_view::npos) {
      held_.erase(0, at);
      return;
    }
    if (!AddCallText(held.substr(begin + kBegin.size(), end - kBegin.size()), pieces)) {
      if (scan_.first_mark != 0) {
        --rereads_left_;
        end = scan_.first_mark;
      }
      absl::StrAppend(&pieces.content, held.substr(begin, end + kEnd.size()));
    }
    at = begin + end + kEnd.size();
    scan_ = {};
  }
}

// The end of an answer that may have an open section.
void ToolCallFinder::FlushSections(ToolPieces& pieces) {
  while (true) {
    // Models end the answer where the closing mark would stand.
    const bool open = absl::StartsWith(held_, kBegin);
    if (open && AddCallText(absl::string_view(held_).substr(kBegin.size()), pieces)) break;
    if (!open || scan_.first_mark == 0) {
      pieces.content += held_;
      break;
    }
    --rereads_left_;
    const size_t end = scan_.first_mark + kEnd.size();
    pieces.content += held_.substr(0, end);
    held_.erase(0, end);
    scan_ = {};
    TakeSections(pieces);
  }
  held_.clear();
}

// The last call of an answer that had to be one.
void ToolCallFinder::AddLast(ToolCall call, ToolPieces& pieces) {
  call.whole = IsObject(call.arguments);
  if (parallel_ || !found_) {
    cut_ = !call.whole;
    pieces.calls.push_back(std::move(call));
  }
  found_ = true;
}

// Whether it is a call, given or not.
bool ToolCallFinder::AddCall(const Json& object, absl::string_view json, ToolPieces& pieces) {
  ToolCall call;
  if (!ReadCall(object, json, call)) return false;
  if (parallel_ || !found_) pieces.calls.push_back(std::move(call));
  found_ = true;
  return true;
}

bool ToolCallFinder::AddCallText(absl::string_view json, ToolPieces& pieces) {
  const absl::StatusOr<Json> object = ParseModelJson(absl::StripAsciiWhitespace(json));
  return object.ok() && AddCall(*object, json, pieces);
}

void ToolCallFinder::TakeList(absl::string_view json, ToolPieces& pieces) {
  // Only objects are read, so the list is read as a member of one.
  const absl::StatusOr<Json> list = ParseModelJson(absl::StrCat("{\"calls\":", json, "}"));
  if (!list.ok() || !(*list)["calls"].is_array()) return;
  ObjectScanner scanner(json);
  for (const Json& object : (*list)["calls"]) {
    absl::string_view text;
    if (!object.is_object() || !scanner.Next(text)) return;
    AddCall(object, text, pieces);
  }
}

void ToolCallFinder::TakeCutList(absl::string_view json, ToolPieces& pieces) {
  ObjectScanner scanner(json);
  absl::string_view object;
  while (scanner.Next(object)) AddCallText(object, pieces);
  // The constraint writes the name first: {"name": "...", "parameters": ...
  const absl::string_view rest = scanner.rest();
  constexpr absl::string_view kArguments = "\"parameters\":";
  const size_t arguments = rest.find(kArguments);
  if (arguments == absl::string_view::npos) return;
  absl::string_view head = absl::StripTrailingAsciiWhitespace(rest.substr(0, arguments));
  head.remove_suffix(absl::EndsWith(head, ",") ? 1 : 0);
  const std::string named_text = absl::StrCat(head, "}");
  const absl::StatusOr<Json> named = ParseModelJson(named_text);
  ToolCall call;
  if (!named.ok() || !ReadCall(*named, named_text, call)) return;
  call.arguments =
      std::string(absl::StripLeadingAsciiWhitespace(rest.substr(arguments + kArguments.size())));
  AddLast(std::move(call), pieces);
}

ToolPieces ToolCallFinder::Flush() {
  ToolPieces pieces;
  if (mode_ == ToolMode::kAuto) {
    FlushSections(pieces);
    return pieces;
  }
  const std::string rest = std::exchange(held_, "");
  if (mode_ == ToolMode::kNamed) {
    AddLast({tool_name_, rest}, pieces);
  } else if (mode_ == ToolMode::kRequired) {
    TakeList(rest, pieces);
    if (!found_) TakeCutList(rest, pieces);
  } else {
    pieces.content = rest;
  }
  return pieces;
}

}  // namespace tandem::router
