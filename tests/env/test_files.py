"""The published formats, in invented rows of their shape: what is read, what is counted, what is refused and how."""

import csv
import gzip
import io
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from mempo_env.errors import DataError, MissingExtraError, UnknownNameError
from mempo_env.retrieval.bm25 import BM25Retriever
from mempo_env.scoring import normalise_squad
from mempo_env.tasks import Dataset, load_dataset
from mempo_env.tasks.corpora import read_corpus
from mempo_env.tasks.formats import join_sentences
from mempo_env.types import Passage, Question

HOTPOT = {
    "_id": "5a01",
    "question": "In which town was the founder of Orrin Mills born?",
    "answer": "Veldry",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Orrin Mills", 1], ["Tessa Orrin", 0]],
    "context": [
        ["Orrin Mills", ["Orrin Mills was a weaving company.", " Tessa Orrin founded it in 1871."]],
        ["Tessa Orrin", ["Tessa Orrin was born in Veldry.", "She kept bees."]],
        ["Veldry (band)", ["Veldry is a band."]],
    ],
}
TWO_WIKI = HOTPOT | {
    "_id": "2w01",
    "evidences": [
        ["Orrin Mills", "country", "Norland"],
        ["Orrin Mills", "founder", "Tessa Orrin"],
        ["Tessa Orrin", "place of birth", "Veldry"],
    ],
    "answer_id": "Q77",
}
MUSIQUE = {
    "id": "2hop__12_34",
    "question": "When did the town where Tessa Orrin was born get its charter?",
    "answer": "Dec. 4, 1688",
    "answer_aliases": ["4 December 1688", "Dec. 4, 1688"],
    "answerable": True,
    "question_decomposition": [
        {"id": 12, "question": "Where was Tessa Orrin born?", "answer": "veldry", "paragraph_support_idx": 1},
        {"id": 34, "question": "When did #1 get its charter?", "answer": "Dec. 4, 1688", "paragraph_support_idx": 2},
    ],
    "paragraphs": [
        {"idx": 0, "title": "Bees", "paragraph_text": "Bees fly.", "is_supporting": False},
        {
            "idx": 1,
            "title": "Tessa Orrin",
            "paragraph_text": "She kept bees. Tessa Orrin came from Veldry. She died.",
            "is_supporting": True,
        },
        {
            "idx": 2,
            "title": "Veldry",
            "paragraph_text": "Veldry is old. It had its charter on Dec. 4, 1688 from the duke. It has a mill.",
            "is_supporting": True,
        },
    ],
}
NQ = {"question": "who founded orrin mills", "answer": ["Tessa Orrin", "Orrin"]}
TRIVIA = {
    "Question": "Which bee keeper founded Orrin Mills?",
    "QuestionId": "tc_7",
    "Answer": {"Value": "Tessa Orrin", "Aliases": ["T. Orrin", "Tessa Orrin"], "NormalizedAliases": ["tessa orrin"]},
}
TRIVIA_ROW = {
    "question": "Which bee keeper founded Orrin Mills?",
    "question_id": "tc_8",
    "answer": {"value": "Tessa Orrin", "aliases": ["T. Orrin"], "normalized_aliases": ["t orrin"]},
}
POPQA = {
    "id": 4222,
    "subj": "Tessa Orrin",
    "prop": "occupation",
    "obj": "weaver",
    "question": "What is Tessa Orrin's occupation?",
    "possible_answers": '["weaver", "textile \\"maker\\""]',
}
FLASHRAG = {
    "id": "dev_3",
    "question": "Where is Veldry?",
    "golden_answers": ["Norland"],
    "metadata": {"type": "bridge"},
}
PHANTOM = {
    "id": "u1",
    "question": "Who is the sister of Dale Frost?",
    "answer": ["Mina Frost", "Ada Frost"],
    "prolog": {"query": "sister(X, Y)", "answer": "Y"},
    "type": 3,
    "difficulty": 1,
}


def write(path: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def lines(path: Path, *rows: object) -> Path:
    return write(path, "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")


def only(dataset: Dataset) -> Question:
    [question] = dataset.questions(dataset.splits[0])
    return question


def facts(question: Question) -> list[tuple[str, str, str]]:
    return [(e.query, e.fact, e.answer) for e in question.evidence]


def check_evidence(dataset: Dataset) -> int:
    """Every link stands verbatim in the passage that it names; the number of links."""
    count = 0
    for split in dataset.splits:
        passages = {p.id: p for p in dataset.passages(split) or ()}
        for question in dataset.questions(split):
            for link in question.evidence:
                assert link.fact in passages[link.passage_id].text
                assert link.title == passages[link.passage_id].title
                count += 1
    return count


def test_hotpotqa(tmp_path):
    dataset = load_dataset(write(tmp_path / "q.json", [HOTPOT]))
    assert isinstance(dataset, Dataset)
    assert (dataset.name, dataset.splits) == ("hotpotqa", ("all",))
    question = only(dataset)
    assert (question.id, question.answers, question.kind) == ("hotpotqa:5a01", ("Veldry",), "bridge")
    assert facts(question) == [
        ("Orrin Mills", "Tessa Orrin founded it in 1871.", ""),
        ("Tessa Orrin", "Tessa Orrin was born in Veldry.", ""),
    ]
    assert [p.text for p in dataset.passages("all")] == [
        "Orrin Mills was a weaving company. Tessa Orrin founded it in 1871.",
        "Tessa Orrin was born in Veldry. She kept bees.",
        "Veldry is a band.",
    ]
    assert check_evidence(dataset) == 2


def test_hotpotqa_as_the_hub_has_it(tmp_path):
    row = HOTPOT | {
        "supporting_facts": {"title": ["Orrin Mills", "Tessa Orrin"], "sent_id": [1, 0]},
        "context": {"title": [t for t, _ in HOTPOT["context"]], "sentences": [s for _, s in HOTPOT["context"]]},
    }
    from_hub = load_dataset(lines(tmp_path / "hub.jsonl", row))
    from_file = load_dataset(write(tmp_path / "q.json", [HOTPOT]))
    assert only(from_hub) == only(from_file)
    assert from_hub.passages("all") == from_file.passages("all")


def test_a_fact_beyond_its_passage_leaves_the_question_without_evidence(tmp_path):
    row = HOTPOT | {"supporting_facts": [["Orrin Mills", 7], ["Tessa Orrin", 0]]}
    dataset = load_dataset(write(tmp_path / "q.json", [row]))
    assert only(dataset).evidence == ()
    assert dataset.report.n_without_evidence == 1


def test_2wikimultihopqa_with_its_aliases(tmp_path):
    path = write(tmp_path / "q.json", [TWO_WIKI])
    assert only(load_dataset(path)).answers == ("Veldry",)
    plain = load_dataset(path).fingerprint
    lines(
        tmp_path / "id_aliases.json",
        {"Q_id": "Q1", "aliases": ["no"], "demonyms": []},
        {"Q_id": "Q77", "aliases": ["Veldrie", "Veldry"], "demonyms": ["Veldrian"]},
    )
    dataset = load_dataset(path)
    assert dataset.name == "2wikimultihopqa"
    assert only(dataset).answers == ("Veldry", "Veldrie", "Veldrian")
    assert [link.answer for link in only(dataset).evidence] == ["Tessa Orrin", "Veldry"]
    assert dataset.fingerprint != plain


@pytest.mark.parametrize("container", ["json", "jsonl"])
def test_musique(tmp_path, container):
    path = tmp_path / "q"
    dataset = load_dataset(write(path, [MUSIQUE]) if container == "json" else lines(path, MUSIQUE))
    question = only(dataset)
    assert (question.id, question.kind) == ("musique:2hop__12_34", "2hop")
    assert question.answers == ("Dec. 4, 1688", "4 December 1688")
    assert facts(question) == [
        ("Tessa Orrin", "Tessa Orrin came from Veldry.", "veldry"),
        ("Veldry", "It had its charter on Dec. 4, 1688 from the duke.", "Dec. 4, 1688"),
    ]
    assert check_evidence(dataset) == 2


def test_musique_without_the_sub_answer_in_the_paragraph_keeps_it_whole(tmp_path):
    hops = [MUSIQUE["question_decomposition"][0] | {"answer": "a town"}]
    dataset = load_dataset(lines(tmp_path / "q", MUSIQUE | {"question_decomposition": hops}))
    assert facts(only(dataset)) == [("Tessa Orrin", MUSIQUE["paragraphs"][1]["paragraph_text"], "a town")]


def test_nq_open(tmp_path):
    path = lines(tmp_path / "NQ-open.dev.jsonl", NQ, NQ | {"question": "who else"})
    dataset = load_dataset(path)
    assert [q.id for q in dataset.questions("all")] == [f"nq_open:NQ-open.dev-{i:06d}" for i in range(2)]
    assert dataset.questions("all")[0].answers == ("Tessa Orrin", "Orrin")
    assert dataset.passages("all") is None


@pytest.mark.parametrize("indent", [None, 2])
def test_triviaqa(tmp_path, indent):
    document = {"Data": [TRIVIA], "Domain": "unfiltered", "VerifiedEval": False, "Version": 1.0}
    dataset = load_dataset(write(tmp_path / "q.json", json.dumps(document, indent=indent)))
    assert only(dataset).id == "triviaqa:tc_7"
    assert only(dataset).answers == ("Tessa Orrin", "T. Orrin", "tessa orrin")


def test_triviaqa_as_the_hub_has_it(tmp_path):
    question = only(load_dataset(lines(tmp_path / "q", TRIVIA_ROW)))
    assert (question.id, question.answers) == ("triviaqa:tc_8", ("Tessa Orrin", "T. Orrin", "t orrin"))


def test_popqa_as_tsv_and_as_json_lines(tmp_path):
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, list(POPQA), delimiter="\t")
    writer.writeheader()
    writer.writerow(POPQA)
    from_tsv = load_dataset(write(tmp_path / "q.tsv", sheet.getvalue()))
    from_json = load_dataset(lines(tmp_path / "q.jsonl", POPQA))
    assert only(from_tsv) == only(from_json)
    assert only(from_tsv).id == "popqa:4222"
    assert only(from_tsv).answers == ("weaver", 'textile "maker"')
    assert only(from_tsv).kind == "occupation"


def test_flashrag_is_named_after_its_file_or_folder(tmp_path):
    (tmp_path / "bamboogle").mkdir()
    assert only(load_dataset(lines(tmp_path / "bamboogle" / "test.jsonl", FLASHRAG))).id == "bamboogle:dev_3"
    assert only(load_dataset(lines(tmp_path / "mine.jsonl", FLASHRAG))).id == "mine:dev_3"
    question = only(load_dataset(tmp_path / "mine.jsonl", name="yours"))
    assert (question.id, question.dataset, question.kind) == ("yours:dev_3", "yours", "bridge")


def test_phantomwiki_answers_name_the_whole_set(tmp_path):
    questions = write(tmp_path / "q.json", [PHANTOM, PHANTOM | {"id": "u2", "answer": ["Ada Frost"]}])
    articles = write(tmp_path / "a.json", [{"title": "Dale Frost", "article": "# Dale Frost\n\nHis sister is Ada."}])
    dataset = load_dataset(questions, articles)
    two, one = dataset.questions("all")
    assert (two.id, two.kind) == ("phantomwiki:u1", "type 3")
    assert two.answers == ("Mina Frost, Ada Frost", "Ada Frost, Mina Frost")
    assert one.answers == ("Ada Frost",)
    assert [(p.title, p.text) for p in dataset.passages("all")] == [
        ("Dale Frost", "# Dale Frost\n\nHis sister is Ada.")
    ]


def test_arrays_are_lists(tmp_path):
    from mempo_env.tasks.files import FileDataset
    from mempo_env.tasks.records import ListRows

    row = {"question": "who", "answer": np.array(["Tessa Orrin", "Orrin"], dtype=object)}
    dataset = FileDataset({"train": [ListRows([row], "memory", "train")]})
    assert dataset.questions("train")[0].answers == ("Tessa Orrin", "Orrin")


# Corpora


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            [{"id": "0", "contents": '"Orrin"\nA mill.\nOld.'}, {"id": 1, "contents": "Only a text."}],
            [("0", '"Orrin"', "A mill.\nOld."), ("1", "", "Only a text.")],
        ),
        ([{"title": "Orrin", "text": " A mill. "}], [(None, "Orrin", "A mill.")]),
        ([{"id": "7", "title": "Orrin", "text": "A mill."}], [("7", "Orrin", "A mill.")]),
        (
            {"Orrin": ["A mill.", " Old."], "Bees": "They fly."},
            [(None, "Orrin", "A mill. Old."), (None, "Bees", "They fly.")],
        ),
        ([{"title": "Orrin", "article": "A mill."}], [(None, "Orrin", "A mill.")]),
        ([HOTPOT | {"context": HOTPOT["context"][2:]}], [(None, "Veldry (band)", "Veldry is a band.")]),
    ],
)
@pytest.mark.parametrize("as_lines", [False, True])
def test_corpus_formats(tmp_path, content, expected, as_lines):
    path = tmp_path / "corpus"
    if as_lines and isinstance(content, list):
        lines(path, *content)
    else:
        write(path, content)
    dataset = load_dataset(lines(tmp_path / "q.jsonl", NQ), path)
    found = [(p.id, p.title, p.text) for p in dataset.passages("all")]
    assert [(t, x) for _, t, x in found] == [(t, x) for _, t, x in expected]
    assert all(want is None or got == want for (got, _, _), (want, _, _) in zip(found, expected, strict=True))
    assert [(p.title, p.text) for p in read_corpus([path])] == [(t, x) for _, t, x in expected]


def test_equal_titles_stay_and_exact_duplicates_are_counted(tmp_path):
    corpus = lines(
        tmp_path / "c",
        {"title": "Aurora", "text": "A light."},
        {"title": "Aurora", "text": "A town."},
        {"title": "Aurora", "text": "A light."},
        {"title": "Empty", "text": "  "},
    )
    dataset = load_dataset(lines(tmp_path / "q.jsonl", NQ), corpus)
    assert [p.text for p in dataset.passages("all")] == ["A light.", "A town."]
    assert len({p.id for p in dataset.passages("all")}) == 2
    report = dataset.report
    assert (report.n_passages, report.n_passage_duplicates, report.n_empty_passages) == (2, 1, 1)


def test_a_title_that_comes_twice_in_one_object_is_not_lost(tmp_path):
    corpus = write(tmp_path / "c", '{"Aurora": ["A light."], "Aurora": ["A town."]}')
    dataset = load_dataset(lines(tmp_path / "q.jsonl", NQ), corpus)
    assert [p.text for p in dataset.passages("all")] == ["A light.", "A town."]


def test_passage_ids_do_not_depend_on_the_file(tmp_path):
    embedded = load_dataset(write(tmp_path / "q.json", [HOTPOT]))
    corpus = write(tmp_path / "c.json", dict(reversed(HOTPOT["context"])))
    given = load_dataset(tmp_path / "q.json", corpus)
    assert {p.id for p in given.passages("all")} == {p.id for p in embedded.passages("all")}
    assert only(given) == only(embedded)


def test_evidence_is_traced_in_a_corpus_of_other_passages(tmp_path):
    corpus = lines(
        tmp_path / "c.jsonl",
        {"id": "9", "contents": '"Orrin Mills"\nMills.'},
        {"id": "10", "contents": '"Orrin Mills"\nWell. Tessa Orrin founded it in 1871. Yes.'},
        {"id": "11", "contents": '"Tessa Orrin"\nTessa Orrin was born in Veldry.'},
    )
    dataset = load_dataset(write(tmp_path / "q.json", [HOTPOT]), corpus)
    assert [(e.query, e.passage_id) for e in only(dataset).evidence] == [("Orrin Mills", "10"), ("Tessa Orrin", "11")]
    lines(tmp_path / "c.jsonl", {"id": "9", "contents": '"Orrin Mills"\nTessa Orrin founded it in 1871.'})
    dataset = load_dataset(tmp_path / "q.json", corpus)
    assert only(dataset).evidence == ()
    assert dataset.report.n_without_evidence == 1


def test_a_built_corpus_folder_is_a_corpus(tmp_path):
    pytest.importorskip("pyarrow")
    from mempo_env.retrieval.corpus import build_corpus

    source = write(tmp_path / "c.json", dict(HOTPOT["context"]))
    build_corpus(read_corpus([source]), tmp_path / "built", source="test")
    dataset = load_dataset(write(tmp_path / "q.json", [HOTPOT]), tmp_path / "built")
    assert check_evidence(dataset) == 2
    assert len(dataset.passages("all")) == 3


def test_join_sentences_keeps_each_verbatim():
    sentences = ["One.", "Two.", " Three. ", "", "Four."]
    assert join_sentences(sentences) == "One. Two. Three. Four."
    assert join_sentences([]) == ""


# Containers


def test_gzip_and_byte_order_mark_and_blank_lines(tmp_path):
    path = tmp_path / "q.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf\n" + json.dumps(NQ).encode() + b"\r\n\n"))
    assert only(load_dataset(path)).id == "nq_open:q-000000"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="gzip data is damaged"):
        load_dataset(path)


def test_unusual_line_separators_inside_strings_are_text(tmp_path):
    row = json.dumps(NQ | {"question": "who\u2028founded\x85it"}, ensure_ascii=False)
    assert only(load_dataset(lines(tmp_path / "q", row))).text == "who\u2028founded\x85it"


def test_several_files_are_one_split(tmp_path):
    paths = [lines(tmp_path / "a.jsonl", NQ), lines(tmp_path / "b.jsonl", NQ | {"question": "who else"})]
    dataset = load_dataset(paths, split="test")
    assert dataset.splits == ("test",)
    assert [q.id for q in dataset.questions("test")] == ["nq_open:a-000000", "nq_open:b-000000"]
    assert pickle.loads(pickle.dumps(dataset)).questions("test") == dataset.questions("test")


def test_a_folder_gives_splits_and_a_corpus(tmp_path):
    lines(tmp_path / "NQ-open.train.jsonl", NQ)
    lines(tmp_path / "nq_valid.jsonl", NQ | {"question": "who else"}, NQ)
    lines(tmp_path / "latest.jsonl", "not read: test is not a word of its own here")
    write(tmp_path / "corpus_2.json", {"Orrin": ["A mill."]})
    write(tmp_path / "README.md", "ignored")
    dataset = load_dataset(tmp_path)
    assert dataset.splits == ("train", "dev")
    assert [len(dataset.questions(s)) for s in dataset.splits] == [1, 2]
    assert dataset.passages("dev") is dataset.passages("train")
    assert dataset.report.n_questions == 3
    assert dataset.report.n_passages == 1
    assert dataset.report_of("dev").n_rows == 2
    with pytest.raises(UnknownNameError, match=r"split of data set 'nq_open' 'tset'.*Known: dev, train"):
        dataset.questions("tset")
    lines(tmp_path / "train.jsonl", NQ)
    with pytest.raises(DataError, match="two files for the split 'train'"):
        load_dataset(tmp_path)


def test_a_folder_without_splits_says_what_it_found(tmp_path):
    lines(tmp_path / "data.jsonl", NQ)
    with pytest.raises(DataError, match=r"train, dev, valid or test in their names, found data\.jsonl"):
        load_dataset(tmp_path)


# What is counted, and what is refused


def test_the_separator_in_an_answer_is_rewritten_and_counted(tmp_path):
    golds = ["Guns; Germs, and Steel", "1;000", ";a;b ; c;"]
    dataset = load_dataset(lines(tmp_path / "q", NQ | {"answer": golds}, NQ))
    rewritten = dataset.questions("all")[0].answers
    assert rewritten == ("Guns, Germs, and Steel", "1,000", ",a,b , c,")
    assert [normalise_squad(new) for new in rewritten] == [normalise_squad(old) for old in golds]
    assert dataset.report.n_rewritten == 1


def test_equal_rows_are_merged_and_counted(tmp_path):
    dataset = load_dataset(lines(tmp_path / "q", NQ, NQ, NQ | {"answer": ["someone"]}))
    assert [q.id[-6:] for q in dataset.questions("all")] == ["000000", "000002"]
    report = dataset.report
    assert (report.n_rows, report.n_questions, report.n_duplicates) == (3, 2, 1)
    dataset = load_dataset(lines(tmp_path / "q", FLASHRAG, FLASHRAG), name="toy")
    assert dataset.report.n_duplicates == 1
    with pytest.raises(DataError, match="line 2: the id 'dev_3' stands on two different questions"):
        load_dataset(lines(tmp_path / "q", FLASHRAG, FLASHRAG | {"golden_answers": ["Sudland"]}))


BAD_ROWS = [
    (NQ | {"answer": []}, "no answer", "expected at least one answer"),
    (NQ | {"answer": None}, "no answer", "expected at least one answer"),
    (NQ | {"answer": ["", "  "]}, "no answer", "expected at least one answer"),
    (NQ | {"answer": "[]"}, "wrong shape", "list written as a string"),
    (NQ | {"answer": '["Tessa"]'}, "wrong shape", "list written as a string"),
    (NQ | {"answer": [["Tessa"]]}, "wrong shape", "answers as strings, got list"),
    (NQ | {"answer": 1.5}, "wrong shape", "answers as strings, got float"),
    (NQ | {"question": " "}, "no question", "the text is empty"),
    (NQ | {"question": None}, "wrong shape", "question: expected a string, got NoneType"),
    ({"question": "who"}, "wrong shape", "found the keys question"),
    ({"title": "Orrin", "text": "A mill."}, "wrong shape", "These are passages: give such a file as the corpus"),
    ({"a": 1}, "wrong shape", "expected questions as in HotpotQA"),
    ({}, "wrong shape", "found the keys none"),
    (MUSIQUE | {"answerable": False}, "unanswerable", "not answerable"),
    (POPQA | {"possible_answers": "[]"}, "no answer", "expected at least one answer"),
    (POPQA | {"possible_answers": "weaver"}, "wrong shape", "JSON list"),
    (FLASHRAG | {"golden_answers": []}, "no answer", "expected at least one answer"),
    (PHANTOM | {"answer": []}, "no answer", "expected at least one answer"),
    (TRIVIA | {"Answer": None}, "no answer", "answer object"),
    (HOTPOT | {"answer": ""}, "no answer", "expected at least one answer"),
    (HOTPOT | {"context": "text"}, "wrong shape", "context"),
    ('{"question": "who", "answer": ["x"', "corrupt", "not valid JSON"),
    ('["question"]', "corrupt", "one JSON object a line, got list"),
    ("[" * 100_000, "corrupt", "not valid JSON"),
]


@pytest.mark.parametrize(("row", "reason", "message"), BAD_ROWS)
def test_a_bad_row_is_refused_with_its_place_or_skipped_and_counted(tmp_path, row, reason, message):
    path = lines(tmp_path / "q.jsonl", NQ, row, NQ | {"question": "who else"})
    with pytest.raises(DataError, match=rf"q\.jsonl: line 2: .*{re.escape(message)}.*on_bad=\"skip\""):
        load_dataset(path)
    dataset = load_dataset(path, on_bad="skip")
    assert len(dataset.questions("all")) == 2
    report = dataset.report
    assert (report.n_rows, report.n_skipped, report.reasons) == (3, 1, {reason: 1})


def test_a_bad_record_of_a_json_list_is_named(tmp_path):
    with pytest.raises(DataError, match="record 2: expected at least one answer"):
        load_dataset(write(tmp_path / "q.json", [NQ, NQ | {"answer": []}]))
    with pytest.raises(DataError, match="record 2: expected a JSON object, got str"):
        load_dataset(write(tmp_path / "q.json", [NQ, "x"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"[]", "no rows"),
        (b'[{"question": "who"\n\n, oops]', r"line 3, column 3: not valid JSON"),
        (b'{"question": broken}\n{"question": "who", "answer": "x"}\n', r"line 1, column 14: not valid JSON"),
        (b'[\n"\xff"]', "line 2: not UTF-8"),
        (b"\x80\x04\x95", "line 1: expected JSON lines"),
        (b"just words", "line 1: expected JSON lines.*found b'just words'"),
        (b"a\tb\n1\t2\t3\n", r"line 2: expected 2 tab-separated fields"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(tmp_path, content, message):
    path = tmp_path / "q.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset(path)


def test_a_line_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(json.dumps(NQ).encode() + b'\n{"question": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        load_dataset(path)


def test_a_file_whose_rows_are_all_bad_is_refused(tmp_path):
    path = lines(tmp_path / "q.jsonl", NQ | {"answer": []}, NQ | {"answer": []})
    with pytest.raises(DataError, match=r"no usable question in 2 rows \(\{'no answer': 2\}\)"):
        load_dataset(path, on_bad="skip")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 3, "title": "t"}, "line 2: text: expected a string, got int"),
        ({"name": "x"}, r"line 2: expected passages as \{id, contents\}.*found the keys name"),
        ("{", "line 2: not valid JSON"),
        ({"id": "0", "title": "Other", "text": "More."}, "passage id '0' stands on two different passages"),
    ],
)
def test_a_bad_corpus_row_is_refused(tmp_path, row, message):
    corpus = lines(tmp_path / "c.jsonl", {"id": "0", "title": "Orrin", "text": "A mill."}, row)
    with pytest.raises(DataError, match=message):
        load_dataset(lines(tmp_path / "q", NQ), corpus)


def test_nothing_is_unpickled(tmp_path):
    class Mark:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "mark",))

    (tmp_path / "q.json").write_bytes(pickle.dumps(Mark()))
    with pytest.raises(DataError):
        load_dataset(tmp_path / "q.json")
    assert not (tmp_path / "mark").exists()


# Names


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'wrold'\. Did you mean 'world'"):
        load_dataset("wrold")
    with pytest.raises(DataError, match=r"missing\.json: no such file"):
        load_dataset(tmp_path / "missing.json")
    with pytest.raises(DataError, match=r"data/missing\.jsonl: no such file"):
        load_dataset("data/missing.jsonl")
    with pytest.raises(DataError, match="no such file"):
        load_dataset(lines(tmp_path / "q", NQ), tmp_path / "missing.json")
    with pytest.raises(DataError, match="got int"):
        load_dataset(3)
    with pytest.raises(DataError, match="empty list"):
        load_dataset([])
    with pytest.raises(UnknownNameError, match="Known: error, skip"):
        load_dataset(tmp_path / "q", on_bad="ignore")
    with pytest.raises(DataError, match="split= names the split of a single file"):
        load_dataset(tmp_path, split="dev")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("world:sise=3", "expected options like size=2000"),
        ("world:size", "expected options like size=2000"),
        ("world:size=many", "expected size=<whole number>"),
        ("world:seed=1.5", "expected seed=<whole number>"),
        ("world:register=plane", "Did you mean 'plain'"),
    ],
)
def test_bad_world_options(spec, message):
    with pytest.raises(DataError if "mean" not in message else UnknownNameError, match=message):
        load_dataset(spec)


def test_a_world_is_named_by_its_options_and_shared():
    dataset = load_dataset("world:size=200,seed=3")
    assert isinstance(dataset, Dataset)
    assert load_dataset("world:seed=3, size=200") is dataset
    assert load_dataset(dataset) is dataset
    assert load_dataset("world-compact:size=200") is load_dataset("world:register=compact,size=200")
    assert load_dataset(dataset.name) is dataset
    assert load_dataset("world:size=200,seed=-4,min_hops=2,max_hops=3").name.startswith("world:size=200,seed=-4,")
    assert load_dataset("world:size=200,seed=4").fingerprint != dataset.fingerprint
    for options in ({"corpus": "x"}, {"name": "x"}, {"split": "x"}):
        with pytest.raises(DataError, match="brings its own"):
            load_dataset("world", **options)


def test_the_fingerprint_sees_questions_corpus_and_name(tmp_path):
    path = lines(tmp_path / "q.jsonl", NQ)
    corpus = lines(tmp_path / "c.jsonl", {"title": "Orrin", "text": "A mill."})
    first = load_dataset(path).fingerprint
    assert load_dataset(path).fingerprint == first
    prints = [first, load_dataset(path, corpus).fingerprint, load_dataset(path, name="other").fingerprint]
    lines(corpus, {"title": "Orrin", "text": "A mill!"})
    prints.append(load_dataset(path, corpus).fingerprint)
    lines(path, NQ | {"answer": "x"})
    prints.append(load_dataset(path).fingerprint)
    assert len(set(prints)) == 5


# The hub, offline: the loader is replaced, what it returns is the library's own


@pytest.fixture
def hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    made = {
        ("toy/FlashRAG", "hotpotqa"): {"test": [FLASHRAG], "train": [FLASHRAG | {"id": "train_0"}]},
        ("toy/trivia", None): {"validation": [TRIVIA_ROW]},
        ("toy/corpus", None): {"train": [{"id": "0", "contents": '"Orrin"\nA mill.'}]},
    }

    def load(path, name=None):
        if (path, name) not in made:
            raise FileNotFoundError(f"no {path}")
        rows = made[path, name]
        return datasets.DatasetDict({split: datasets.Dataset.from_list(r) for split, r in rows.items()})

    monkeypatch.setattr(datasets, "load_dataset", load)
    return made


def test_hub_names(hub):
    dataset = load_dataset("toy/FlashRAG:hotpotqa", "toy/corpus")
    assert dataset.name == "hotpotqa"
    assert dataset.splits == ("train", "test")
    assert dataset.questions("test")[0].id == "hotpotqa:dev_3"
    assert dataset.passages("train") == (Passage("0", '"Orrin"', "A mill."),)
    assert load_dataset("toy/FlashRAG:hotpotqa", "toy/corpus").fingerprint == dataset.fingerprint
    assert pickle.loads(pickle.dumps(dataset)).questions("train") == dataset.questions("train")
    trivia = load_dataset("toy/trivia", name="triviaqa")
    assert trivia.questions("validation")[0].answers == ("Tessa Orrin", "T. Orrin", "t orrin")


def test_hub_failures_are_data_errors(hub):
    with pytest.raises(DataError, match="'toy/nothing' is no file or folder here, and the hub could not give it"):
        load_dataset("toy/nothing")
    with pytest.raises(DataError, match="one split here, got train, test"):
        load_dataset("toy/trivia", "toy/FlashRAG:hotpotqa")


def test_a_hub_name_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"'toy/trivia' is no file.*pip install 'mempo-gym\[data\]'"):
        load_dataset("toy/trivia")


def test_a_data_set_saved_on_disk_by_the_library_reads_the_same(tmp_path):
    datasets = pytest.importorskip("datasets")
    from mempo_env.tasks.files import FileDataset
    from mempo_env.tasks.records import ListRows

    datasets.Dataset.from_list([MUSIQUE]).save_to_disk(tmp_path / "saved")
    rows = datasets.load_from_disk(tmp_path / "saved")
    dataset = FileDataset({"train": [ListRows(rows, "saved", "train")]})
    assert dataset.questions("train") == load_dataset(lines(tmp_path / "q", MUSIQUE)).questions("all")
    rows.set_format("numpy")
    again = FileDataset({"train": [ListRows(rows, "saved", "train")]})
    assert again.questions("train")[0].answers == dataset.questions("train")[0].answers


def test_questions_can_be_searched(tmp_path):
    dataset = load_dataset(write(tmp_path / "q.json", [HOTPOT]))
    retriever = BM25Retriever(dataset.passages("all"))
    for link in only(dataset).evidence:
        [hits] = retriever.search([link.query], 1)
        assert hits[0].passage.id == link.passage_id
