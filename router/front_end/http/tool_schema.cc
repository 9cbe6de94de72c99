#include "router/front_end/http/tool_schema.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/guided/json_schema/flatten.h"

namespace tandem::router {
namespace {

static_assert(kConstrainingToolsMax == guided::json_schema::kAlternativesMax);

// Keywords whose members are named by the client and are schemas.
constexpr std::array kMaps = {"properties", "patternProperties", "$defs", "definitions"};
// Keywords whose values are data.
constexpr std::array kData = {"enum", "const", "default", "examples"};

template <size_t n>
bool IsOneOf(const std::array<const char*, n>& keywords, const std::string& key) {
  return std::find(keywords.begin(), keywords.end(), key) != keywords.end();
}

// Makes a document's root a definition of another document.
class DocumentMover {
 public:
  // `name`: the definition's. It has no "~" and no "/".
  explicit DocumentMover(std::string name) : name_(std::move(name)) {}

  Json Move(Json root) {
    for (const char* keyword : {"$id", "id"}) {
      const auto id = root.find(keyword);
      if (id == root.end() || !id->is_string()) continue;
      if (keyword[0] == '$') id_ = std::string(absl::StripSuffix(id->get<std::string>(), "#"));
      root.erase(keyword);
    }
    Rewrite(root);
    return root;
  }

 private:
  void Rewrite(Json& schema) const {
    if (schema.is_array()) {
      for (Json& one : schema) Rewrite(one);
    }
    if (!schema.is_object()) return;
    for (auto& [key, value] : schema.items()) {
      if (key == "$ref" && value.is_string()) {
        value = Moved(value.get_ref<const std::string&>());
      } else if ((key == "$anchor" || key == "$dynamicAnchor") && value.is_string()) {
        value = AnchorOf(value.get_ref<const std::string&>());
      } else if (IsOneOf(kMaps, key) && value.is_object()) {
        for (auto& member : value) Rewrite(member);
      } else if (!IsOneOf(kData, key)) {
        Rewrite(value);
      }
    }
  }

  std::string AnchorOf(absl::string_view anchor) const { return absl::StrCat(name_, ".", anchor); }

  std::string Moved(const std::string& reference) const {
    absl::string_view rest = reference;
    if (!id_.empty()) absl::ConsumePrefix(&rest, id_);
    if (!rest.empty() && !absl::ConsumePrefix(&rest, "#")) return reference;
    if (rest.empty() || rest[0] == '/') return absl::StrCat("#/$defs/", name_, rest);
    return absl::StrCat("#", AnchorOf(rest));
  }

  const std::string name_;
  std::string id_;
};

// A call's object for each tool, whose arguments have this name, and their definitions.
struct CallKinds {
  Json kinds = Json::array(), definitions = Json::object();
};

CallKinds KindsOfCalls(const Json& tools, const char* arguments) {
  CallKinds calls;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string name = absl::StrCat("tools[", i, "]");
    calls.definitions[name] = DocumentMover(name).Move(ParametersOf(tools[i]));
    const Json names = Json::array({tools[i]["function"]["name"]});
    calls.kinds.push_back({{"type", "object"},
                           {"properties",
                            {{"name", {{"type", "string"}, {"enum", names}}},
                             {arguments, {{"$ref", absl::StrCat("#/$defs/", name)}}}}},
                           {"required", Json::array({"name", arguments})},
                           {"additionalProperties", false}});
  }
  return calls;
}

}  // namespace

Json ParametersOf(const Json& tool) {
  const Json& function = tool["function"];
  const auto parameters = function.find("parameters");
  const bool given = parameters != function.end() && !parameters->is_null();
  Json schema = given ? *parameters : Json::object();
  const auto type = schema.find("type");
  // An addition to `allOf` would keep some keywords from being supported.
  const bool takes_objects =
      type == schema.end() || (type->is_array() && absl::c_linear_search(*type, Json("object")));
  if (takes_objects) {
    schema["type"] = "object";
  } else if (*type != "object") {
    Json& all = schema["allOf"];
    if (all.is_null()) all = Json::array();
    // What is no list is refused when the schema is compiled.
    if (all.is_array()) all.push_back(Json{{"type", "object"}});
  }
  return schema;
}

Json SchemaOfCalls(const Json& tools, bool parallel) {
  auto [kinds, definitions] = KindsOfCalls(tools, "parameters");
  Json list = {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", std::move(kinds)}}}};
  if (!parallel) list["maxItems"] = 1;
  list["$defs"] = std::move(definitions);
  return list;
}

std::string GrammarOfValueOrCalls(const std::string& schema, const Json& tools, bool parallel) {
  auto [kinds, definitions] = KindsOfCalls(tools, "arguments");
  const Json call = {{"anyOf", std::move(kinds)}, {"$defs", std::move(definitions)}};
  return absl::StrCat(R"(root ::= value | call)", parallel ? "+" : "", R"(
call ::= "<tool_call>" [ \n]? %json )",
                      JsonText(call), R"( [ \n]? "</tool_call>" "\n"?
value ::= %json )",
                      schema, "\n");
}

}  // namespace tandem::router
