/* Claims: a flag of a message or of a row takes it out of training, by whatever name and however
 * answers are found; what cannot be obeyed as it stands is an error with its place. */
#include "tests/support/chat_show.h"

#define BAD(flag)                                                                                  \
    "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'BAD'" flag "},"     \
    "{'role':'user','content':'r'},{'role':'assistant','content':'GOOD'}]}"
#define ROW(flag)                                                                                  \
    "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'},"               \
    "{'role':'user','content':'r'},{'role':'assistant','content':'b'}]," flag "}"

static const char good[] = "<user>q.<assistant>BAD.<user>r.<assistant>[GOOD.]";

START_TEST(flags_of_messages_exclude_them)
{
    static const char *const off[] = {",'weight':0",
                                      ",'weight':0.0",
                                      ",'weight':false",
                                      ",'loss':false",
                                      ",'loss':0",
                                      ",'train':false",
                                      ",'training':false",
                                      ",'trainable':0",
                                      ",'loss_mask':0",
                                      ",'train_mask':0",
                                      ",'loss_weight':0",
                                      ",'loss_scale':0",
                                      ",'weight':1,'train':false"};
    static const char *const on[] = {
        "", ",'weight':1", ",'weight':1.0", ",'loss':true", ",'weight':null", ",'train_detail':[]"};
    char json[1000];
    setup();
    for (size_t i = 0; i < CZ_ARRAY_LEN(off); i++) {
        snprintf(json, sizeof json, BAD("%s"), off[i]);
        check_shown(PLAIN, NULL, J(json), good);
        check_shown(MARKED, NULL, J(json), good);
        check_shown(PLAIN, "completion", J(json), good);
        check_shown(PLAIN, "all", J(json), "[<user>q.]<assistant>BAD.[<user>r.<assistant>GOOD.]");
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(on); i++) {
        snprintf(json, sizeof json, BAD("%s"), on[i]);
        check_shown(PLAIN, NULL, J(json), "<user>q.<assistant>[BAD.]<user>r.<assistant>[GOOD.]");
        check_shown(MARKED, NULL, J(json), "<user>q.<assistant>[BAD.]<user>r.<assistant>[GOOD.]");
        check_shown(PLAIN, "all", J(json), "[<user>q.<assistant>BAD.<user>r.<assistant>GOOD.]");
    }
    /* ShareGPT, prompts with completions, and messages that are not the assistant's */
    check_shown(PLAIN, NULL,
                J("{'conversations':[{'from':'human','value':'q','train':false},{'from':'gpt',"
                  "'value':'a','loss':false},{'from':'gpt','value':'b'}]}"),
                "<user>q.<assistant>a.<assistant>[b.]");
    check_shown(PLAIN, "all",
                J("{'conversations':[{'from':'human','value':'q','train':false},{'from':'gpt',"
                  "'value':'a','loss':false},{'from':'gpt','value':'b','train':true}]}"),
                "<user>q.<assistant>a.[<assistant>b.]");
    check_shown(PLAIN, NULL,
                J("{'prompt':[{'role':'user','content':'q'}],'completion':[{'role':'assistant',"
                  "'content':'a','weight':0},{'role':'user','content':'r'},{'role':'assistant',"
                  "'content':'b'}]}"),
                "<user>q.<assistant>a.[<user>r.<assistant>b.]");
    check_shown(PLAIN, "completion",
                J("{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'},"
                  "{'role':'assistant','content':'b','weight':0}]}"),
                "<user>q.<assistant>a.<assistant>b.");
    teardown();
}
END_TEST

/* Marks of the same words, marks around more than an answer, two marks for an answer, and answers
 * that the template writes in another way once others follow. */
START_TEST(excluded_messages_are_found_under_all_templates)
{
    static const char twice[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content[:1] }}{% endgeneration %}-{% generation %}{{ m.content[1:] }}."
        "{% endgeneration %}{% else %}{{ m.content }}.{% endif %}{% endfor %}";
    static const char forgets[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
        "{% if loop.last %}?{% endif %}{{ m.content }}.{% endgeneration %}{% else %}"
        "{{ m.content }}.{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>"
        "{% endif %}";
    setup();
    check_shown(twice, NULL, J(BAD(",'weight':0")),
                "<user>q.<assistant>B-AD.<user>r.<assistant>[G]-[OOD.]");
    check_shown(forgets, NULL, J(BAD(",'weight':0")),
                "<user>q.<assistant>BAD.<user>r.<assistant>[?GOOD.]");
    check_shown(FORGETS, NULL, J(BAD(",'weight':0")),
                "<user>q.<assistant>BAD.<user>r.<assistant>[<think></think>GOOD.]");
    check_shown(FORGETS, "all", J(BAD(",'weight':0")),
                "[<user>q.<assistant>]BAD.[<user>r.<assistant><think></think>GOOD.]");
    check_shown(MARKED, NULL,
                J("{'messages':[{'role':'assistant','content':'x'},{'role':'assistant','content':"
                  "'x','weight':0},{'role':'assistant','content':'x'}]}"),
                "<assistant>[x.]<assistant>x.<assistant>[x.]");
    check_shown(MARKED, NULL,
                J("{'messages':[{'role':'assistant','content':'','weight':0},{'role':'assistant',"
                  "'content':'y'}]}"),
                "<assistant>.<assistant>[y.]");
    /* an excluded answer that cannot be found costs nothing where answers are looked for */
    check_left_out("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
                   J(BAD(",'weight':0")), CHAT_UNFOUND, "message 4 cannot be found");
    struct shown s;
    ck_assert_int_eq(show("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
                          "all",
                          J("{'messages':[{'role':'user','content':'q','train':0},{'role':"
                            "'assistant','content':'a'}]}"),
                          &s),
                     CZ_INVALID);
    ck_assert_int_eq(s.fault, CHAT_UNFOUND);
    ck_assert_msg(strstr(cz_last_error(), "f:1: message 1 is not to be trained, but cannot be"),
                  "%s", cz_last_error());
    teardown();
}
END_TEST

START_TEST(flags_of_rows_are_of_all_or_of_each)
{
    static const char none[] = "<user>q.<assistant>a.<user>r.<assistant>b.";
    setup();
    check_shown(PLAIN, NULL, J(ROW("'loss_mask':[0,1]")),
                "<user>q.<assistant>a.<user>r.<assistant>[b.]");
    check_shown(MARKED, NULL, J(ROW("'train_mask':[true,false]")),
                "<user>q.<assistant>[a.]<user>r.<assistant>b.");
    check_shown(PLAIN, NULL, J(ROW("'loss_masks':[0,1,0,0]")),
                "<user>q.<assistant>[a.]<user>r.<assistant>b.");
    check_shown(PLAIN, "all", J(ROW("'weights':[1,1,0,1]")),
                "[<user>q.<assistant>a.]<user>r.[<assistant>b.]");
    check_shown(PLAIN, NULL, J(ROW("'loss_mask':[0,0]")), none);
    check_shown(PLAIN, NULL, J(ROW("'train':false")), none);
    check_shown(MARKED, "all", J(ROW("'weight':0")), none);
    check_shown(PLAIN, "completion", J(ROW("'loss':0")), none);
    check_shown(PLAIN, NULL, J(ROW("'train':true")),
                "<user>q.<assistant>[a.]<user>r.<assistant>[b.]");
    check_shown(PLAIN, NULL, J("{'prompt':'ab','completion':'cd','train':false}"), "abcd");
    check_shown(PLAIN, NULL, J("{'text':'ab','loss':0}"), "ab");
    check_shown(PLAIN, "all", J("{'text':'ab','loss':0}"), "ab");
    check_shown(PLAIN, NULL, J("{'instruction':'i','output':'o','weight':0}"),
                "<user>i.<assistant>o.");
    /* a message that was made of a member has no entry */
    check_shown(PLAIN, NULL,
                J("{'system':'s','conversations':[{'from':'human','value':'q'},{'from':'gpt',"
                  "'value':'a'}],'loss_mask':[0,1]}"),
                "<system>s.<user>q.<assistant>[a.]");
    check_shown(PLAIN, NULL,
                J("{'instruction':'i','output':'o','history':[['q','r']],'loss_mask':[0,1]}"),
                "<user>q.<assistant>r.<user>i.<assistant>[o.]");
    teardown();
}
END_TEST

START_TEST(flags_of_other_types_are_errors)
{
    setup();
    check_refused(PLAIN, J(BAD(",'weight':'0'")), CZ_INVALID,
                  "f:1: message 2: \"weight\" is a string: write 0 or 1, or true or false");
    check_refused(PLAIN, J(BAD(",'weight':0.5")), CZ_INVALID, "message 2: \"weight\" is 0.5");
    check_refused(PLAIN, J(BAD(",'weight':2")), CZ_INVALID, "message 2: \"weight\" is 2");
    check_refused(PLAIN, J(BAD(",'weight':-1")), CZ_INVALID, "message 2: \"weight\" is -1");
    check_refused(PLAIN, J(BAD(",'weight':1e999")), CZ_INVALID, "message 2: \"weight\" is 1e999");
    check_refused(PLAIN, J(BAD(",'loss':[0]")), CZ_INVALID, "message 2: \"loss\" is an array");
    check_refused(PLAIN, J(BAD(",'train_detail':[{'begin_offset':0}]")), CZ_INVALID,
                  "message 2: \"train_detail\" trains parts of a text");
    check_refused(PLAIN, J(BAD(",'mask':1")), CZ_INVALID, "message 2: \"mask\" does not say");
    check_refused(PLAIN, J(ROW("'mask':'User'")), CZ_INVALID, "f:1: \"mask\" does not say");
    check_refused(PLAIN, J(ROW("'weight':0.5")), CZ_INVALID, "f:1: \"weight\" is 0.5");
    check_refused(PLAIN, J(ROW("'loss_mask':[0,1,0]")), CZ_INVALID,
                  "\"loss_mask\" has 3 entries, and the row has 4 messages, 2 of them");
    check_refused(PLAIN, J(ROW("'loss_mask':[0,'1']")), CZ_INVALID,
                  "entry 2 of \"loss_mask\" is a string");
    check_refused(PLAIN, J("{'text':'a','loss_mask':[1]}"), CZ_INVALID,
                  "\"loss_mask\" is a list, but the row has no messages");
    check_refused(PLAIN,
                  J("{'messages':[{'role':'user','content':'q','train':true},{'role':'assistant',"
                    "'content':'a'}]}"),
                  CZ_INVALID, "message 1: \"train\" asks to train a message that is not the");
    check_refused(PLAIN, J(ROW("'loss_mask':[1,1,1,1]")), CZ_INVALID,
                  "entry 1 of \"loss_mask\" asks to train a message");
    check_refused(PLAIN,
                  J("{'prompt':[{'role':'user','content':'q'}],'completion':[{'role':'assistant',"
                    "'content':'a','loss':'x'}]}"),
                  CZ_INVALID, "f:1: completion: message 1: \"loss\" is a string");
    teardown();
}
END_TEST

TEST_MAIN("data/chat_flags", flags_of_messages_exclude_them,
          excluded_messages_are_found_under_all_templates, flags_of_rows_are_of_all_or_of_each,
          flags_of_other_types_are_errors)
