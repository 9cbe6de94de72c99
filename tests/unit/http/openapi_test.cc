// Goal: the description of the HTTP API is whole: every route is in it, every schema that it names
// exists, every parameter of the table stands there under each of its names with its range, and a
// strict reader knows every field of a request that it describes.
#include "router/front_end/http/openapi.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/request/parameter_table.h"
#include "common/request/request_members.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/model_assets.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

Json Document(bool keys = false) { return Json::parse(HttpApi::DescribeRoutes(keys)); }

// Calls `visit` with every value below `json` that is a reference.
template <typename Visitor>
void ForEachReference(const Json& json, Visitor visit) {
  if (json.is_object() && json.contains("$ref")) visit(json["$ref"].get<std::string>());
  if (json.is_structured()) {
    for (const Json& member : json) ForEachReference(member, visit);
  }
}

TEST(OpenApi, EveryRouteIsDescribed) {
  const Json document = Document();
  std::set<std::string> operations;
  for (const auto& [path, methods] : document["paths"].items()) {
    const std::string served(HttpApi::MethodsOf(path));
    EXPECT_NE(served, "") << path;
    for (const auto& [method, operation] : methods.items()) {
      const std::string name = absl::StrCat(method, " ", path);
      EXPECT_THAT(served, ::testing::HasSubstr(absl::AsciiStrToUpper(method)));
      EXPECT_NE(operation["summary"], "") << name;
      EXPECT_NE(operation["tags"][0], "") << name;
      EXPECT_TRUE(operations.insert(operation["operationId"].get<std::string>()).second) << name;
      EXPECT_EQ(operation.contains("parameters"), path.find('{') != std::string::npos) << name;
    }
  }
  // One that clients depend on, from each group.
  for (const char* path : {"/v1/responses/{id}", "/tokenize", "/v1/models/{name}", "/status",
                           "/traces/{id}", "/metrics", "/", "/page/{name}", "/openapi.json"}) {
    EXPECT_TRUE(document["paths"].contains(path)) << path;
  }
}

TEST(OpenApi, EveryReferenceLeadsToASchema) {
  const Json document = Document(/*keys=*/true);
  int references = 0;
  ForEachReference(document, [&](const std::string& reference) {
    ++references;
    ASSERT_EQ(reference.front(), '#');
    EXPECT_TRUE(document.contains(Json::json_pointer(reference.substr(1)))) << reference;
  });
  EXPECT_GT(references, 40);
}

TEST(OpenApi, KeysAreAskedForWhereTheyAreNeeded) {
  EXPECT_FALSE(Document()["paths"]["/status"]["get"].contains("security"));
  const Json paths = Document(/*keys=*/true)["paths"];
  EXPECT_TRUE(paths["/status"]["get"].contains("security"));
  EXPECT_TRUE(paths["/v1/chat/completions"]["post"].contains("security"));
  EXPECT_FALSE(paths["/health"]["get"].contains("security"));
}

TEST(OpenApi, EveryParameterHasEachOfItsNames) {
  const Json schemas = OpenApiSchemas();
  const std::pair<unsigned, const char*> apis[] = {{request::kCompletions, "CompletionRequest"},
                                                   {request::kChat, "ChatRequest"},
                                                   {request::kResponses, "ResponseRequest"}};
  for (const auto& [api, schema] : apis) {
    const Json& properties = schemas[schema]["properties"];
    request::ForEachParameter([&, api = api](const auto& row) {
      if (row.about.apis & api) {
        EXPECT_TRUE(properties.contains(std::string(row.about.name)));
      }
      for (const request::Alias& alias : row.about.aliases) {
        if (alias.apis & api) {
          EXPECT_TRUE(properties.contains(std::string(alias.name)));
        }
      }
    });
  }
  const Json& top_p = schemas["ChatRequest"]["properties"]["top_p"];
  EXPECT_EQ(top_p["minimum"], 0);
  EXPECT_EQ(top_p["maximum"], 1);
  EXPECT_EQ(top_p["default"], 1);
}

TEST(OpenApi, EveryServedMemberIsDescribed) {
  const Json schemas = OpenApiSchemas();
  for (const request::RequestMember& member : request::kRequestMembers) {
    if (member.handling != request::Handling::kServed) continue;
    const std::string name(member.name);
    if (member.apis & request::kCompletions) {
      EXPECT_TRUE(schemas["CompletionRequest"]["properties"].contains(name)) << name;
    }
    if (member.apis & request::kChat) {
      EXPECT_TRUE(schemas["ChatRequest"]["properties"].contains(name)) << name;
    }
  }
}

TEST(OpenApi, AStrictReaderKnowsEveryDescribedField) {
  const std::unique_ptr<ModelAssets> assets = ModelAssets::ForHashEngine().value();
  const Json schemas = OpenApiSchemas();
  Json completion = {{"prompt", "Hello"}};
  for (const auto& [name, schema] : schemas["CompletionRequest"]["properties"].items()) {
    if (!completion.contains(name)) completion[name] = nullptr;
  }
  EXPECT_OK(ReadCompletion(completion, /*strict=*/true).status());
  Json chat = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  for (const auto& [name, schema] : schemas["ChatRequest"]["properties"].items()) {
    if (!chat.contains(name)) chat[name] = nullptr;
  }
  EXPECT_OK(ReadChat(chat, *assets, absl::UnixEpoch(), /*strict=*/true).status());
  chat["no_such_field"] = 1;
  EXPECT_FALSE(ReadChat(chat, *assets, absl::UnixEpoch(), /*strict=*/true).ok());
}

}  // namespace
}  // namespace tandem::router
