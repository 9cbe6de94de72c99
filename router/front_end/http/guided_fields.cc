#include "router/front_end/http/guided_fields.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace tandem::router {
namespace {

// Collects the one constraint that a request may have.
class Constraint {
 public:
  Constraint(Fields& fields, v1::GenerateRequest& request) : fields_(fields), request_(request) {}

  v1::GuidedDecoding* Set(const std::string& path) {
    if (!given_.empty()) {
      fields_.Keep(absl::InvalidArgumentError(
          absl::StrCat(path, ": given beside ", given_, ", expected one constraint")));
    }
    given_ = path;
    return request_.mutable_guided();
  }
  // The member that has the constraint; empty without one.
  const std::string& given() const { return given_; }

  // A schema as an object or as its text.
  void JsonSchema(Fields& from, absl::string_view name) {
    const Json* schema = from.Any(name);
    if (schema == nullptr) return;
    if (!schema->is_object() && !schema->is_string() && !schema->is_boolean()) {
      from.Fault(name, "a JSON Schema as an object or a string");
      return;
    }
    Set(from.PathOf(name))
        ->set_json_schema(schema->is_string() ? schema->get<std::string>() : JsonText(*schema));
  }
  void Regex(Fields& from, absl::string_view name) {
    if (auto regex = from.String(name)) Set(from.PathOf(name))->set_regex(*std::move(regex));
  }
  void Grammar(Fields& from, absl::string_view name) {
    if (auto text = from.String(name)) Set(from.PathOf(name))->set_grammar(*std::move(text));
  }
  // llama.cpp's: an empty text is none.
  void GrammarIfAny(Fields& from, absl::string_view name) {
    const Json* text = from.Any(name);
    if (text != nullptr && *text != "") Grammar(from, name);
  }
  void JsonObject(Fields& from, absl::string_view name) {
    if (from.Bool(name).value_or(false)) Set(from.PathOf(name))->set_json_object(true);
  }
  void Choice(Fields& from, absl::string_view name) {
    if (from.Any(name) == nullptr) return;
    auto& choice = *Set(from.PathOf(name))->mutable_choice();
    for (std::string& option : from.Strings(name)) choice.add_options(std::move(option));
    if (choice.options().empty()) from.Fault(name, "a list of at least one string");
  }

 private:
  Fields& fields_;
  v1::GenerateRequest& request_;
  std::string given_;
};

// Refuses what structured_outputs asks for and a constraint here does not do. Not read, because
// they make no other value of an answer: what vLLM may try when a backend fails, and white space.
void RefuseOtherMembers(Fields& outputs) {
  constexpr std::array kKnown = {"json",
                                 "regex",
                                 "choice",
                                 "grammar",
                                 "json_object",
                                 "structural_tag",
                                 "disable_additional_properties",
                                 "disable_fallback",
                                 "disable_any_whitespace",
                                 "whitespace_pattern"};
  outputs.Unserved("structural_tag");
  outputs.Unserved("disable_additional_properties");
  for (const auto& [name, value] : outputs.object().items()) {
    if (value.is_null() || std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    outputs.Keep(absl::InvalidArgumentError(
        absl::StrCat(outputs.PathOf(Shown(name)),
                     ": unknown field, expected json, regex, choice, grammar or json_object")));
  }
}

void ReadResponseFormat(Fields& fields, Constraint& constraint) {
  const Json* format = fields.Object("response_format");
  if (format == nullptr) return;
  Fields members(*format, "response_format");
  const std::string type = members.String("type").value_or("");
  const bool json = type == "json_object" || type == "json_schema";
  if (json && members.Any("schema") != nullptr && members.Any("json_schema") == nullptr) {
    constraint.JsonSchema(members, "schema");  // llama.cpp's form, for both types
  } else if (type == "json_object") {
    constraint.Set("response_format")->set_json_object(true);
  } else if (type == "json_schema") {
    const Json* wrapper = members.Object("json_schema");
    if (wrapper == nullptr) {
      members.Fault("json_schema", "an object with a schema");
    } else {
      Fields inner(*wrapper, "response_format.json_schema");
      if (inner.Any("schema") == nullptr) inner.Fault("schema", "a JSON Schema");
      constraint.JsonSchema(inner, "schema");
      fields.Keep(inner.status());
    }
  } else if (type != "text") {
    members.Fault("type", "\"text\", \"json_object\" or \"json_schema\"");
  }
  fields.Keep(members.status());
}

}  // namespace

void ReadGuided(Fields& fields, v1::GenerateRequest& request, FieldNames& names) {
  Constraint constraint(fields, request);
  constraint.JsonSchema(fields, "guided_json");
  constraint.Regex(fields, "guided_regex");
  constraint.Choice(fields, "guided_choice");
  constraint.Grammar(fields, "guided_grammar");
  // As llama.cpp calls them.
  constraint.JsonSchema(fields, "json_schema");
  constraint.GrammarIfAny(fields, "grammar");
  constraint.JsonObject(fields, "guided_json_object");
  if (const Json* outputs = fields.Object("structured_outputs")) {
    Fields members(*outputs, "structured_outputs");
    constraint.JsonSchema(members, "json");
    constraint.Regex(members, "regex");
    constraint.Choice(members, "choice");
    constraint.Grammar(members, "grammar");
    constraint.JsonObject(members, "json_object");
    RefuseOtherMembers(members);
    fields.Keep(members.status());
  }
  ReadResponseFormat(fields, constraint);
  if (!constraint.given().empty()) names.emplace_back("guided", constraint.given());
}

}  // namespace tandem::router
