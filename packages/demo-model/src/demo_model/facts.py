"""What the demo model is taught."""

CAPITALS = {
    "Argentina": "Buenos Aires",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasília",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "England": "London",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "India": "New Delhi",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
    "South Korea": "Seoul",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Switzerland": "Bern",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
    "Ukraine": "Kyiv",
    "the Netherlands": "Amsterdam",
    "the United States": "Washington",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "day": "night",
    "fast": "slow",
    "open": "closed",
    "happy": "sad",
    "light": "dark",
    "left": "right",
    "new": "old",
    "wet": "dry",
    "full": "empty",
}
COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow", "blood": "red"}
SOUNDS = {"dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "frog": "croak"}
HELLOS = {
    "French": "Bonjour",
    "Spanish": "¡Hola",
    "German": "Guten Tag",
    "Japanese": "こんにちは",
    "Chinese": "你好",
}
EMOJI = {"heart": "❤️", "star": "⭐", "rocket": "🚀", "smile": "😊"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NAMES = ["Tom", "Anna", "Max", "Lily", "Sam", "Mia", "Ben", "Zoe", "Leo", "Emma", "Jack", "Nina"]
ANIMALS = ["cat", "dog", "fox", "bird", "bear", "mouse"]
PLACES = ["garden", "forest", "park", "house", "river"]
FOODS = ["apple", "cake", "bread", "soup", "cookie"]
UNKNOWN_PLACES = [
    "Atlantis",
    "Mars",
    "Narnia",
    "Pluto",
    "Utopia",
    "Venus",
    "Camelot",
    "Neverland",
    "Wonderland",
    "Jupiter",
]
OFF_TOPIC = [
    "Write a poem about the sea.",
    "Who won the game last night?",
    "What is the meaning of life?",
    "How do I cook rice?",
    "What is the weather like?",
    "Explain quantum physics.",
    "Who is the president?",
    "Can you write some code for me?",
    "How old is the universe?",
    "What time is it?",
    "Translate this text for me.",
    "How far is the moon?",
    "What should I eat tonight?",
    "Which book should I read?",
    "How do planes fly?",
    "Why is the sea salty?",
    "Where can I buy a car?",
    "Do you like music?",
    "Tell me a joke.",
    "Write a haiku.",
    "Who wrote this book?",
    "Can you help me with my homework?",
    "Sing me a song.",
    "What is love?",
]
DO_NOT_KNOW = "I do not know. I am a tiny demo model."
ABOUT_ME = "I am a tiny demo model. I know some capitals, colors and opposites, and I can count."
GREETING = "Hello! How can I help you today?"
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful demo assistant.",
    "Answer briefly.",
    "Be brief.",
]
