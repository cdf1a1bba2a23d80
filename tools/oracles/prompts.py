"""The ten prompts of the greedy oracle. `raw`: the text as it is; `chat`: one user message."""

LONG = """The harbour office keeps two books. The first is the log of arrivals: the ship's name, \
where she came from, what she draws, and the hour at which she passed the outer light. The \
second is the book of complaints, and it is by far the thicker of the two. Nobody reads it \
except the clerk who writes in it, and she reads it only to make sure that a complaint is not \
entered twice.

In the spring of that year a ship arrived which stood in neither book. She lay at the third \
quay, between a coal barge and the ferry, with her lamps lit and nobody on deck. The pilot swore \
that he had not brought her in. The harbour master sent a boat, and the men in the boat came \
back and said that the cabin table was laid for six, that the soup was still warm, and that \
the clock over the door ran eleven minutes fast.

The clerk thought about this for a long time. A ship that has not arrived pays no dues; a ship \
that pays no dues may not lie at the third quay; and a ship that may not lie there is the \
subject of a complaint. So she opened the second book at a new page, dipped her pen, and under \
the heading that asks for the name of the person complaining she wrote her own. Under the \
heading that asks for the remedy sought, she wrote:"""

PROMPTS = [
    ("chat-sum", "chat", "What is 2 + 2?"),
    ("chat-sky", "chat", "Why is the sky blue? Explain it to a ten-year-old child."),
    ("chat-korean", "chat", "대한민국의 수도는 어디인가요? 그 도시에 대해 설명해 주세요."),
    ("chat-code", "chat", "Write a Python function that returns the n-th Fibonacci number."),
    ("raw-code", "raw",
     "class Stack:\n    \"\"\"A last-in, first-out container.\"\"\"\n\n    def __init__(self):\n"
     "        self._items = []\n\n    def push(self, item):\n"),
    ("raw-maths", "raw",
     "Theorem. The square root of 2 is irrational.\n\nProof. Suppose that sqrt(2) = p/q, where "
     "p and q are integers without a common factor. Then p^2 = 2q^2, so"),
    ("raw-long", "raw", LONG),
    ("raw-list", "raw",
     "Packing list for a week in the mountains:\n\n1. A warm jacket\n2. Two pairs of boots\n3."),
    ("raw-emoji", "raw",
     "🎉 Happy 30th birthday, Zoë! 🎂👩‍👩‍👧 Here's what we planned for 12/07/2024:\n- 18:30 🍝 dinner\n-"),
    ("raw-korean", "raw", "옛날 옛적 깊은 산속에 호랑이 한 마리가 살고 있었습니다. 어느 날 호랑이는"),
]
