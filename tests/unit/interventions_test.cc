// What a specification says is what the editor does: each operation against an independent
// computation, and every wrong specification named.

#include "inspect/interventions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "formats/safetensors_reader.h"
#include "formats/safetensors_writer.h"
#include "tests/support/tiny_model.h"

namespace cutaway::inspect {
namespace {

using trace::Site;

arch::ModelShape small_shape() {
  arch::ModelShape shape;
  shape.n_layers = 3;
  shape.d_model = 6;
  shape.n_heads = 4;
  shape.n_kv_heads = 2;
  shape.d_head = 2;
  shape.d_mlp = 5;
  shape.vocab = 8;
  shape.context_length = 64;
  return shape;
}

class Interventions : public ::testing::Test {
 protected:
  Result<InterventionSpec> parse(const std::string& text) {
    const auto json = parse_json(text);
    EXPECT_TRUE(json.ok()) << text;
    return parse_interventions(*json, small_shape(), *tokenizer_);
  }
  Result<InterventionSpec> item(const std::string& members) {
    return parse("{\"interventions\":[{" + members + "}]}");
  }
  static Result<PatchValues> no_run(const TapEdit&, const std::string&, const trace::TapName&) {
    return Error{ErrorCode::kNotFound, "no run"};
  }
  // What the item makes of 0, 1, 2, … at a tap whose event has this shape.
  std::vector<float> edited(const std::string& members, const Shape& shape,
                            int32_t first_position = 0, int64_t prompt = 4,
                            const std::string& directory = "") {
    auto spec = item(members);
    EXPECT_TRUE(spec.ok()) << spec.error().message;
    auto patches = load_patches(*spec, directory, small_shape().n_layers, no_run);
    EXPECT_TRUE(patches.ok()) << patches.error().message;
    auto editor = InterventionEditor::bind(*spec, *patches, prompt);
    EXPECT_TRUE(editor.ok()) << editor.error().message;
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    trace::TapEvent event;
    event.site = spec->edits[0].tap.site;
    event.layer = spec->edits[0].tap.layer;
    event.first_position = first_position;
    event.values = {values.data(), shape, 0};
    EXPECT_TRUE(editor->changes(event.site, event.layer));
    EXPECT_FALSE(editor->changes(event.site, event.layer + 1));
    editor->edit(event, values.data());
    fired_ = editor->fired()[0];
    return values;
  }
  std::string error_of(const Result<InterventionSpec>& result) {
    return result.ok() ? "no error" : result.error().message;
  }

  // A token a byte.
  static std::shared_ptr<const text::Tokenizer> byte_tokenizer() {
    const arch::Architecture& first = arch::architectures().front();
    ThreadPool pool(1);
    std::string error;
    const auto model =
        testing::tiny_model(first, first.tiny_configs().front(), DType::kF32, pool, true, &error);
    EXPECT_NE(model, nullptr) << error;
    return model->tokenizer();
  }

  std::shared_ptr<const text::Tokenizer> tokenizer_ = byte_tokenizer();
  int64_t fired_ = 0;
};

using Floats = std::vector<float>;

TEST_F(Interventions, each_operation_on_a_row) {
  const Shape two{2, 6};
  const std::string at = R"("tap":"blocks.1.hook_resid_post",)";
  EXPECT_EQ(edited(at + R"("op":"zero")", two), Floats(12, 0.0f));
  EXPECT_EQ(fired_, 2);
  EXPECT_EQ(edited(at + R"("op":"scale","value":-2,"positions":[1])", two),
            (Floats{0, 1, 2, 3, 4, 5, -12, -14, -16, -18, -20, -22}));
  EXPECT_EQ(fired_, 1);
  EXPECT_EQ(edited(at + R"("op":"add","value":[1,0,0,0,0,9],"positions":"1:")", two),
            (Floats{0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 10, 20}));
  EXPECT_EQ(edited(at + R"("op":"replace","value":[7,8],"features":[0,"5:6"])", two),
            (Floats{7, 1, 2, 3, 4, 8, 7, 7, 8, 9, 10, 8}));
}

TEST_F(Interventions, heads_are_chosen_and_take_values_of_their_own) {
  const Shape z{1, 4, 2};
  const std::string at = R"("tap":"blocks.0.attn.hook_z",)";
  EXPECT_EQ(edited(at + R"("op":"zero","heads":[1,"3:4"])", z), (Floats{0, 1, 0, 0, 4, 5, 0, 0}));
  EXPECT_EQ(edited(at + R"("op":"add","heads":[2,0],"value":{"per_head":[10,[1,2]]})", z),
            (Floats{1, 3, 2, 3, 14, 15, 6, 7}));
  EXPECT_EQ(edited(at + R"("op":"replace","value":[-1,-2],"heads":3)", z),
            (Floats{0, 1, 2, 3, 4, 5, -1, -2}));
  // KV heads where the tap has those.
  EXPECT_EQ(edited(R"("tap":"blocks.0.attn.hook_k","op":"zero","heads":[1])", Shape{1, 2, 2}),
            (Floats{0, 1, 0, 0}));
}

TEST_F(Interventions, positions_and_steps_choose_together) {
  const std::string at = R"("tap":"blocks.0.ln1.hook_scale","op":"zero",)";
  const auto kept = [&](const std::string& members, int32_t first = 0) {
    std::string out;  // of six positions from `first` on: x where it is zeroed
    for (const float value : edited(at + members, Shape{6, 1}, first, 4)) {
      out += value == 0 ? 'x' : '.';
    }
    return out.substr(1);  // the first value is 0 as it is
  };
  EXPECT_EQ(kept(R"("positions":[-1,1])"), "x.x..");
  EXPECT_EQ(kept(R"("positions":"-2:")"), ".xxxx");
  EXPECT_EQ(kept(R"("positions":":-2")"), "x....");
  EXPECT_EQ(kept(R"("steps":"prompt")"), "xxx..");
  // Step s is the position that chose token s: step 0 is the prompt's last one.
  EXPECT_EQ(kept(R"("steps":0)"), "..x..");
  EXPECT_EQ(kept(R"("steps":["prompt","2:"])"), "xxx.x");
  EXPECT_EQ(kept(R"("steps":"prompt,2")"), "xxx.x");
  EXPECT_EQ(kept(R"("steps":["prompt","2:"],"positions":[3,5])"), "..x.x");
  EXPECT_EQ(kept(R"("positions":[8,10])", 6), ".x.x.");
  EXPECT_EQ(fired_, 2);
}

// The grammar of `--taps`, `--layers`, `--heads` and `--positions`.
TEST_F(Interventions, taps_and_indices_are_written_as_those_of_captures) {
  const auto taps = [&](const std::string& members) {
    const auto spec = item(members + R"(,"op":"zero")");
    std::string out;
    if (!spec.ok()) return spec.error().message;
    for (const TapEdit& edit : spec->edits) {
      out += trace::tap_name(edit.tap.site, edit.tap.layer) + " ";
    }
    return out;
  };
  const std::string posts =
      "blocks.0.hook_resid_post blocks.1.hook_resid_post blocks.2.hook_resid_post ";
  EXPECT_EQ(taps(R"("tap":"resid_post")"), posts);
  EXPECT_EQ(taps(R"("tap":"blocks.*.hook_resid_post")"), posts);
  EXPECT_EQ(taps(R"("tap":"blocks.0-2.hook_resid_post")"), posts);
  EXPECT_EQ(taps(R"("tap":["resid_post","l_out-1"])"), posts);
  EXPECT_EQ(taps(R"("tap":"resid_post-0,resid_post-1,resid_post-2")"), posts);
  EXPECT_EQ(taps(R"("tap":"resid_post","layers":"0,2")"),
            "blocks.0.hook_resid_post blocks.2.hook_resid_post ");
  EXPECT_EQ(taps(R"("tap":"resid_post","layers":[0,"1-2"])"), posts);
  EXPECT_EQ(taps(R"("tap":"blocks.1:.attn.hook_z")"), "blocks.1.attn.hook_z blocks.2.attn.hook_z ");
  EXPECT_EQ(taps(R"("tap":"z-1,logits")"), "blocks.1.attn.hook_z logits ");
  // A pattern leaves out what cannot be changed.
  EXPECT_EQ(taps(R"("tap":"all")").find("hook_tokens"), std::string::npos);
  EXPECT_EQ(taps(R"("tap":"all")").find("hook_embed"), 0u);

  const Shape z{1, 4, 2};
  const std::string at = R"("tap":"z","layers":0,"op":"zero",)";
  const Floats first_and_last{0, 0, 2, 3, 0, 0, 0, 0};
  EXPECT_EQ(edited(at + R"("heads":"0,2-3")", z), first_and_last);
  EXPECT_EQ(edited(at + R"("heads":["0,2:4"])", z), first_and_last);
  EXPECT_EQ(edited(at + R"("heads":[0,"2:"],"positions":"0-3")", z), first_and_last);
}

TEST_F(Interventions, attention_maps_take_heads_and_keys) {
  // {heads, queries, keys}: two queries from position 1 on.
  const Shape map{4, 2, 3};
  const auto out =
      edited(R"("tap":"blocks.2.attn.hook_pattern","op":"zero","heads":[1],"keys":[0],)"
             R"("positions":[-2])",
             map, 1, 4);
  for (int64_t i = 0; i < 24; ++i) {
    const bool chosen = i == (1 * 2 + 1) * 3;  // head 1, the query at position 2, key 0
    EXPECT_EQ(out[static_cast<size_t>(i)], chosen ? 0 : static_cast<float>(i)) << i;
  }
  EXPECT_EQ(fired_, 1);
  // Keys after the query are left alone: they are not seen.
  const auto all =
      edited(R"("tap":"blocks.2.attn.hook_attn_scores","op":"add","value":100)", map, 1);
  EXPECT_EQ(all[1], 101);
  EXPECT_EQ(all[2], 2);
  EXPECT_EQ(all[5], 105);
}

class Patched : public Interventions {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "interventions";
    std::filesystem::create_directories(directory_);
    auto writer = formats::SafetensorsWriter::create(directory_ + "/a.safetensors",
                                                     {{"blocks.0.attn.hook_z", {1, 3, 4, 2}},
                                                      {"vector", {6}},
                                                      {"map", {1, 4, 3, 3}},
                                                      {"odd", {5}}},
                                                     {});
    ASSERT_TRUE(writer.ok());
    std::vector<float> values(36);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 100 + static_cast<float>(i);
    writer->write(0, 0, std::span(values).first(24));
    writer->write(1, 0, std::span(values).first(6));
    writer->write(2, 0, values);
    ASSERT_TRUE(writer->commit().ok());
  }
  Floats patched(const std::string& members, const Shape& shape, int32_t first = 0) {
    return edited(members, shape, first, 4, directory_);
  }
  Error error(const std::string& members) {
    auto spec = item(members);
    if (!spec.ok()) return spec.error();
    auto patches = load_patches(*spec, directory_, small_shape().n_layers, no_run);
    if (!patches.ok()) return patches.error();
    auto editor = InterventionEditor::bind(*spec, *patches, 4);
    return editor.ok() ? Error{ErrorCode::kIo, "no error"} : editor.error();
  }
  std::string directory_;
};

TEST_F(Patched, values_come_from_the_same_position_or_a_named_one) {
  const std::string z = R"("tap":"blocks.0.attn.hook_z","op":"patch",)";
  const Shape two{2, 4, 2};
  // Of positions 2 and 3 the source has the first; head 1 of it is 118, 119.
  EXPECT_EQ(patched(z + R"("heads":[1],"from":{"file":"a.safetensors"})", two, 2),
            (Floats{0, 1, 118, 119, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(fired_, 1);
  EXPECT_EQ(patched(z + R"("heads":[0],"positions":[3,2],"from":{"file":"a.safetensors",)"
                        R"("positions":[0,1]})",
                    two, 2),
            (Floats{108, 109, 2, 3, 4, 5, 6, 7, 100, 101, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(patched(z + R"("heads":[0],"from":{"file":"a.safetensors","positions":-1})", two, 2),
            (Floats{116, 117, 2, 3, 4, 5, 6, 7, 116, 117, 10, 11, 12, 13, 14, 15}));
}

TEST_F(Patched, a_lone_row_is_added_everywhere) {
  EXPECT_EQ(patched(R"("tap":"blocks.1.hook_resid_pre","op":"add","value":0.5,)"
                    R"("from":{"file":"a.safetensors","tensor":"vector"})",
                    Shape{1, 6}, 9),
            (Floats{50, 51.5, 53, 54.5, 56, 57.5}));
}

TEST_F(Patched, a_map_of_fewer_keys_leaves_the_others_unseen) {
  const auto out = patched(R"("tap":"blocks.0.attn.hook_pattern","op":"patch","positions":[3],)"
                           R"("from":{"file":"a.safetensors","tensor":"map","positions":[2]})",
                           Shape{4, 1, 4}, 3);
  EXPECT_EQ(out, (Floats{106, 107, 108, 0, 115, 116, 117, 0, 124, 125, 126, 0, 133, 134, 135, 0}));
}

// Whatever a damaged file says, it is read or refused.
TEST_F(Patched, damaged_safetensors_are_refused_or_read) {
  std::string good;
  {
    std::ifstream in(directory_ + "/a.safetensors", std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string path = directory_ + "/damaged.safetensors";
  const auto opens = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto file = formats::SafetensorsFile::open(path);
    if (!file.ok()) {
      EXPECT_NE(file.error().message.find("damaged.safetensors"), std::string::npos);
      return false;
    }
    for (const auto& tensor : file->tensors()) {
      const auto values = file->read(tensor);
      if (values.ok()) EXPECT_EQ(std::ssize(*values), tensor.elements());
    }
    return true;
  };
  EXPECT_TRUE(opens(good));
  for (size_t n = 0; n < good.size(); n += 7) EXPECT_FALSE(opens(good.substr(0, n))) << n;
  int refused = 0;
  for (size_t i = 0; i < good.size() - 300; ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << i % 7));
    refused += opens(bad) ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
  for (const char* header :
       {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
        R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", R"({"a":3})", "[]", "{"}) {
    const uint64_t length = std::string_view(header).size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    EXPECT_FALSE(opens(bytes + header + std::string(4, '\0'))) << header;
  }
}

TEST_F(Patched, what_does_not_fit_is_named) {
  const std::string z = R"("tap":"blocks.0.attn.hook_z","op":"patch",)";
  const std::pair<const char*, const char*> cases[] = {
      {R"("from":{"file":"b.safetensors"})", "interventions[0].from.file"},
      {R"("from":{"file":"a.safetensors","tensor":"vectors"})", "did you mean \"vector\"?"},
      {R"("from":{"file":"a.safetensors","tensor":"vector"})", "takes {1, positions, 4, 2}"},
      {R"("positions":[3],"from":{"file":"a.safetensors"})", "positions 0 to 2"},
      {R"("positions":[0],"from":{"file":"a.safetensors","positions":[3]})",
       "interventions[0].from.positions has 3; the source has positions 0 to 2"},
      {R"("positions":[0],"from":{"file":"a.safetensors","positions":[0,1]})",
       "has 2 positions; interventions[0].positions must name as many"},
      {R"("positions":[-5],"from":{"file":"a.safetensors"})",
       "interventions[0].positions has -5; the prompt has 4 tokens"},
  };
  for (const auto& [members, expected] : cases) {
    const std::string message = error(z + members).message;
    EXPECT_NE(message.find(expected), std::string::npos) << members << "\n" << message;
  }
}

TEST_F(Interventions, what_is_wrong_is_named_with_its_item_and_what_would_do) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("op":"zero")", "interventions[0].tap is missing"},
      {R"("tap":"blocks.0.hook_resid_pst","op":"zero")", "blocks.0.hook_resid_post"},
      {R"("tap":"blocks.7.hook_resid_post","op":"zero")", "layers are 0 to 2"},
      {R"("tap":"logits","op":"erase")", "takes zero, scale, add, replace or patch"},
      {R"("tap":"logits","op":"scale")", "interventions[0].value is missing; scale needs it"},
      {R"("tap":"logits","op":"zero","value":1)", "value has no effect with zero"},
      {R"("tap":"logits","op":"patch")", "from is missing"},
      {R"("tap":"logits","op":"replace","value":1,"from":{"file":"a"})", "from has no effect"},
      {R"("tap":"logits","op":"patch","from":{})", "needs one of \"file\""},
      {R"("tap":"logits","op":"patch","from":{"run":"a","tensor":"b"})", "goes with \"file\""},
      {R"("tap":"logits","op":"add","value":[1,2])", "has 2 numbers; a row of logits has 8"},
      {R"("tap":"logits","op":"add","value":1e39)", "finite number"},
      {R"("tap":"logits","op":"add","value":"x")", "finite number"},
      {R"("tap":"logits","op":"zero","heads":[0])", "heads is there; logits has no heads"},
      {R"("tap":"logits","op":"zero","features":[8])", "has 8; there are 8 features, 0 to 7"},
      {R"("tap":"logits","op":"zero","features":[3,"2:5"])",
       "interventions[0].features has 3 twice"},
      {R"("tap":"blocks.0.attn.hook_z","op":"zero","heads":[1,1])", "has 1 twice"},
      {R"("tap":"logits","op":"zero","keys":[0])", "has no keys"},
      {R"("tap":"logits","op":"zero","head":[0])", "did you mean \"heads\"?"},
      {R"("tap":"blocks.0.attn.hook_v","op":"zero","heads":[2])", "has 2; there are 2 KV heads"},
      {R"("tap":"blocks.0.attn.hook_z","op":"add","value":{"per_head":[1]})", "takes a list of 4"},
      {R"("tap":"logits","op":"zero","positions":"1;2")",
       "interventions[0].positions is \"1;2\"; it takes an index, a range like 2-5"},
      {R"("tap":"logits","op":"zero","positions":[3,"5:5"])",
       "interventions[0].positions is \"5:5\""},
      {R"("tap":"logits","op":"zero","positions":2.5)", "interventions[0].positions is 2.5"},
      {R"("tap":"logits","op":"zero","positions":"")", "interventions[0].positions is \"\""},
      {R"("tap":"logits","op":"zero","steps":[-1])", "none is below 0"},
      {R"("tap":"logits","op":"zero","steps":"prefill")", "\"prompt\""},
      {R"("tap":"hook_tokens","op":"zero")", "hook_embed can"},
      {R"("tap":"blocks.0.mlp.hook_router_logits","op":"zero")",
       "interventions[0].tap: this model has no such tap: blocks.0.mlp.hook_router_logits; it is "
       "no"},
      {R"("tap":"hook_pos_embed","op":"zero")", "it has no learned positions"},
      {R"("tap":"zebra*","op":"zero")", "interventions[0].tap: no tap of this model is meant by"},
      {R"("tap":"z-3","op":"zero")", "layers are 0 to 2"},
      {R"("tap":["logits","logits"],"op":"zero")", "tap logits is named twice"},
      {R"("tap":"z","layers":[3],"op":"zero")",
       "interventions[0].layers has 3; there are 3 layers"},
      {R"("tap":"z","layers":"x","op":"zero")", "interventions[0].layers is \"x\"; it takes"},
      {R"("tap":"blocks.1.attn.hook_z","layers":"0,2","op":"zero")",
       "interventions[0].layers leaves out layer 1 of the tap"},
      {R"("tap":"logits","op":"patch","from":{"run":"a","tap":"resid_post"})",
       "interventions[0].from.tap is \"resid_post\", which is 3 taps; it takes one"},
      {R"("tap":"logits","op":"patch","from":{"run":"a","tap":"resid_pst"})",
       "interventions[0].from.tap: no tap is called"},
  };
  for (const auto& [members, expected] : cases) {
    const std::string message = error_of(item(members));
    EXPECT_NE(message.find(expected), std::string::npos) << members << "\n" << message;
  }
  EXPECT_NE(error_of(parse("{}")).find("changes nothing"), std::string::npos);
  EXPECT_NE(error_of(parse("[]")).find("takes an object"), std::string::npos);
  EXPECT_NE(error_of(parse(R"({"intervention":[]})")).find("did you mean"), std::string::npos);
}

TEST_F(Interventions, tokens_are_ids_or_texts) {
  const auto spec = parse(R"({"tokens":{"force":[{"step":2,"text":"ab"},{"step":0,"id":7}],)"
                          R"("ban":[{"ids":[3],"texts":["c"],"steps":["1:3",5]}]}})");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  const auto rules = spec->rules();
  const auto ids = tokenizer_->encode_ids("abc", false, false);
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 3u);
  EXPECT_EQ(rules.forced_at(0), 7);
  EXPECT_EQ(rules.forced_at(1), std::nullopt);
  EXPECT_EQ(rules.forced_at(2), (*ids)[0]);
  EXPECT_EQ(rules.forced_at(3), (*ids)[1]);
  ASSERT_EQ(rules.bans.size(), 1u);
  EXPECT_EQ(rules.bans[0].ids, (std::vector<int32_t>{3, (*ids)[2]}));
  std::string held;
  for (int64_t step = 0; step < 7; ++step) held += rules.bans[0].holds(step) ? 'x' : '.';
  EXPECT_EQ(held, ".xx..x.");

  const std::pair<const char*, const char*> cases[] = {
      {R"({"force":[{"id":1}]})", "tokens.force[0].step is missing"},
      {R"({"force":[{"step":0}]})", "needs one of an id and a text"},
      {R"({"force":[{"step":0,"id":99999999}]})", "ids are 0 to"},
      {R"({"force":[{"step":2147483647,"text":"abc"}]})",
       "forces 3 tokens from step 2147483647 on; the last step is 2147483647"},
      {R"({"force":[{"step":0,"text":"abc"},{"step":2,"id":1}]})", "forces step 2, which another"},
      {R"({"ban":[{"texts":["ab"]}]})", "which is 2 tokens"},
      {R"({"ban":[{}]})", "names no token"},
      {R"({"force":[{"step":1,"id":5}],"ban":[{"ids":[5]}]})", "forces token 5 at step 1 and bans"},
  };
  for (const auto& [tokens, expected] : cases) {
    const std::string message = error_of(parse(std::string("{\"tokens\":") + tokens + "}"));
    EXPECT_NE(message.find(expected), std::string::npos) << tokens << "\n" << message;
  }
}

TEST_F(Patched, what_a_recording_keeps_does_the_same_again) {
  const std::string items =
      R"("tap":"blocks.0.attn.hook_z","op":"patch","heads":[0],"positions":[3,2],)"
      R"("from":{"file":"a.safetensors","positions":[0,-1]})";
  const auto spec = item(items);
  ASSERT_TRUE(spec.ok());
  const auto patches = load_patches(*spec, directory_, 3, no_run);
  ASSERT_TRUE(patches.ok());
  ASSERT_TRUE(write_patches(*spec, *patches, directory_ + "/kept.safetensors").ok());
  const Json kept = recorded_spec(*spec, *patches, "kept.safetensors");
  std::string again = to_text(kept["interventions"][0]);
  again = again.substr(1, again.size() - 2);
  const Shape two{2, 4, 2};
  EXPECT_EQ(patched(again, two, 2), patched(items, two, 2));
  EXPECT_EQ(patched(again, two, 2)[0], 116);
}

}  // namespace
}  // namespace cutaway::inspect
